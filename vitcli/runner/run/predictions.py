"""predictions.npz: the outputs of a run for its test images, from which statistics are computed.

Reading the file needs no torch.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitcli.core.spec.rows import load_target
from vitcli.core.spec.task import TaskRow
from vitcli.runner.files import commit

if TYPE_CHECKING:
    from torch import Tensor

Arrays = dict[str, NDArray[np.generic]]
BROKEN_ARCHIVE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, ArithmeticError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""The exceptions of numpy for damaged archives and unexpected arrays."""
MAX_BYTES = 1 << 30
"""Largest size of the unpacked arrays together: 250,000 images of 1,000 classes are below it."""
HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def save_outputs(path: Path, outputs: "Mapping[str, Tensor]") -> None:
    """Write the outputs of a task for every image to one .npz file."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in outputs.items()}
    with io.BytesIO() as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        commit(path, file.getvalue())


def read_outputs(content: bytes) -> Arrays:
    """Return the arrays of a predictions.npz by name.

    Raises:
        ValueError: The content is not such a file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(each.file_size for each in members) > MAX_BYTES:
                raise ValueError
            return {
                each.filename.removesuffix(".npy"): _read_array(archive.read(each))
                for each in members
            }
    except BROKEN_ARCHIVE as error:  # numpy's own message advises to allow pickles
        raise ValueError("not an archive of predictions") from error


def _read_array(content: bytes) -> NDArray[np.generic]:
    """Return the array of a .npy file, whose header may not claim more than the file holds."""
    file = io.BytesIO(content)
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():
        raise ValueError
    file.seek(0)
    array: NDArray[np.generic] = np.load(file, allow_pickle=False)
    return array


def recomputed(content: bytes, row: TaskRow) -> tuple[float, int] | None:
    """Return the main number of the task and the number of images; None if neither is stored.

    Raises:
        ValueError: The content is not a predictions.npz of this task.
    """
    arrays = read_outputs(content)
    if row.headline.recompute is None:
        return None
    try:
        value, count = load_target(row.headline.recompute)(arrays)
    except BROKEN_ARCHIVE as error:
        known = isinstance(error, ValueError) and str(error)
        raise ValueError(known or "not the predictions of this task") from error
    return float(value), int(count)


def condensed(content: bytes, row: TaskRow) -> bytes:
    """Return the same predictions, small enough to commit.

    Raises:
        ValueError: The content is not a predictions.npz of this task.
    """
    arrays = read_outputs(content)
    if row.headline.condense is not None:
        arrays = load_target(row.headline.condense)(arrays)
    with io.BytesIO() as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return file.getvalue()
