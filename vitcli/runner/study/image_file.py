"""What a trial of another program says of each test image, from an .npz, .npy or .csv file."""

import csv
import io
from pathlib import Path

import numpy as np

from vitcli.core.metrics.stored import correct
from vitcli.runner.errors import InputError
from vitcli.runner.files import read_bounded
from vitcli.runner.run.predictions import (
    BROKEN_ARCHIVE,
    MAX_BYTES,
    Arrays,
    PerImage,
    read_outputs,
)

NAMES = {
    "label": ("label", "labels", "target", "targets"),
    "prediction": ("prediction", "predictions", "predicted", "pred", "preds"),
    "logits": ("logits", "probabilities"),
    "correct": ("correct",),
}
"""Array -> what it may be called."""


def read_images(folder: Path, text: str, place: str) -> PerImage:
    """Return the score of each image, and its label where the file has labels.

    Args:
        folder: The folder of the table, from which the file is named.
        text: The file and, after a colon, a folder in an .npz file.
        place: The line of the table, for errors.

    Raises:
        InputError: The file cannot be read, or holds neither ``correct`` nor labels and predictions.
    """
    name, colon, inside = text.partition(".npz:")
    path = folder / (f"{name}.npz" if colon else text)
    path = path if path.exists() else Path(f"{name}.npz" if colon else text)
    try:
        found = _per_image(_arrays(path, inside))
    except OSError as error:
        raise InputError(f"{place}: {path} cannot be read: {error.strerror}") from error
    except BROKEN_ARCHIVE as error:
        raise InputError(
            f"{place}: {path} must hold 'correct', or 'label' and 'prediction', one number for"
            " each image"
        ) from error
    return found


def _arrays(path: Path, inside: str) -> Arrays:
    content = read_bounded(path, MAX_BYTES)
    if path.suffix == ".csv":
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig")))
        columns = np.array(rows, np.float64).T
        return dict(zip(header, columns, strict=True))
    if path.suffix == ".npy":
        return {"correct": np.load(io.BytesIO(content), allow_pickle=False)}
    return read_outputs(content, inside)


def _per_image(arrays: Arrays) -> PerImage:
    known = {use: arrays[n] for use, names in NAMES.items() for n in names if n in arrays}
    labels = np.asarray(known.get("label", ()), np.int64)
    if "correct" in known:
        found = PerImage(known["correct"], labels)
    else:
        found = PerImage(*correct(known | {"labels": labels, "label": labels}))
    if not found.is_sound:
        raise ValueError
    return found
