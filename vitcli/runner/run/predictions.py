"""predictions.npz: the outputs of a run for its test images, from which statistics are computed.

Reading the file needs no torch.
"""

import io
import math
import zipfile
import zlib
from collections import namedtuple
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitcli.core.metric import own_metrics
from vitcli.core.metrics.stored import check_predictions
from vitcli.core.spec.task import TaskRow
from vitcli.plugin import Target, load_target
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit, read_bounded
from vitcli.runner.text import percent

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
MAX_CLASSES = 1 << 20
"""A label above it is damage; a table by class takes memory for every label below it."""
FOREIGN = "not the predictions of this task"
OBJECTS = "an array of Python objects; save it with .astype(str)"
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
SHORTEST_HEADER = 12
"""Bytes of version and length, before the line of text that ends a header."""


def save_outputs(path: Path, outputs: "Mapping[str, Tensor]") -> None:
    arrays = {name: tensor.cpu().numpy() for name, tensor in outputs.items()}
    with io.BytesIO() as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        commit(path, file.getvalue())


class Predictions(NamedTuple):
    """The outputs of a run for all test images, in the order of ``data.test``."""

    logits: NDArray[np.float32]
    """(N, K): one row per image, one column per class."""
    labels: NDArray[np.int64]
    """(N,): the index of the true class."""


def read_predictions(path: Path, state: str, row: TaskRow) -> Any:
    """Return ``Predictions``, or a tuple of all arrays by name; ``state`` is that of the run."""
    try:
        arrays = read_outputs(read_bounded(path, MAX_BYTES))
        if not row.classifies:
            kind = namedtuple("Predictions", arrays)  # type: ignore[misc]
            return kind(*(array.copy() for array in arrays.values()))
        logits, labels = check_predictions(arrays)
    except FileNotFoundError as error:
        raise InputError(f"{path}: it is missing (the run is {state})") from error
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: {error}") from error
    return Predictions(logits.copy(), labels.copy())  # they can be written to


def describe_undefined(measured: Collection[str]) -> list[str]:
    """Return a note for each own metric without a number."""
    return [
        f"note: {metric.source}: metric {metric.name} returned None, NaN or infinity, so it is not"
        " in the result"
        for metric in own_metrics()
        if metric.name not in measured
    ]


def describe_one_answer(accuracy: float, name: str, share: float) -> str:
    """Return the warning of a model that is no better than always answering one class."""
    return (
        f"warning: accuracy {percent(accuracy)} is no better than always answering {name}, which"
        f" would be right for {percent(share)}"
    )


def read_outputs(content: bytes, prefix: str = "") -> Arrays:
    """Return the arrays of a predictions.npz by name: those whose names begin with ``prefix``."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [item for item in archive.infolist() if item.filename.startswith(prefix)]
            if sum(member.file_size for member in members) > MAX_BYTES:
                raise ValueError
            names = [item.filename.removeprefix(prefix).removesuffix(".npy") for item in members]
            arrays: Arrays = {}
            for name, member in zip(names, members, strict=True):
                arrays[name] = read_array(archive.read(member))
            return arrays
    except BROKEN_ARCHIVE as error:  # numpy's own message advises to allow pickles
        has_objects = str(error) == OBJECTS
        problem = f"{name!r} is {OBJECTS}" if has_objects else "not an archive of predictions"
        raise ValueError(problem) from error


def read_array(content: bytes) -> NDArray[np.generic]:
    """Return the array of a .npy file, whose header may not claim another size than it has."""
    start = content.index(b"\n", SHORTEST_HEADER) + 1
    shape, is_fortran, dtype = _parse_header(content[:start])
    if dtype.hasobject:
        raise ValueError(OBJECTS)
    if math.prod(shape) * dtype.itemsize != len(content) - start:
        raise ValueError
    array: NDArray[np.generic] = np.frombuffer(content, dtype, offset=start)
    return array.reshape(shape, order="F" if is_fortran else "C")


@lru_cache
def _parse_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(header)
    return HEADERS[np.lib.format.read_magic(file)](file)


def condensed(arrays: Arrays, row: TaskRow) -> Arrays:
    """Return the same predictions, small enough to commit."""
    return arrays if row.headline.condense is None else _apply(row.headline.condense, arrays)


@dataclass(frozen=True)
class PerImage:
    """The headline metric of each test image, (I,), and its label, (I,), or no labels."""

    scores: NDArray[np.generic]
    labels: NDArray[np.int64]

    @property
    def mean(self) -> float:
        return float(self.scores.mean(dtype=np.float64))

    @property
    def is_sound(self) -> bool:
        """Return whether every image has a finite score and, in a task with labels, a class."""
        scores, labels = self.scores, self.labels
        is_known = (labels >= 0) & (labels < MAX_CLASSES)
        return bool(
            (scores.ndim == 1 and len(scores) > 0 and labels.shape in ((0,), scores.shape))
            and scores.dtype.kind in "biuf"
            and np.isfinite(scores).all()
            and is_known.all()
        )


def per_image(arrays: Arrays, row: TaskRow) -> PerImage | None:
    """Return what the outputs of a task say of each image; None if the task cannot say it."""
    if row.headline.per_image is None:
        return None
    with np.errstate(invalid="ignore"):
        scores, labels = _apply(row.headline.per_image, arrays)
    found = PerImage(np.asarray(scores), np.array([] if labels is None else labels, np.int64))
    if not found.is_sound:
        raise ValueError(FOREIGN)
    return found


def read_per_image(path: Path, row: TaskRow) -> PerImage | None:
    return per_image(read_outputs(read_bounded(path, MAX_BYTES)), row)


def _apply(target: Target, arrays: Arrays) -> Any:
    try:
        return load_target(target)(arrays)
    except BROKEN_ARCHIVE as error:
        known = isinstance(error, ValueError) and str(error)
        raise ValueError(known or FOREIGN) from error
