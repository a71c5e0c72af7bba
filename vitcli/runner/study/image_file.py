"""What a trial of another program says of each test image, from an .npz, .npy or .csv file."""

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
    read_array,
    read_outputs,
)
from vitcli.runner.tables import csv_text, read_csv

NAMES = {"labels": "label", "predictions": "prediction", "predicted": "prediction"}
"""Other names of arrays."""


def read_images(folder: Path, text: str, place: str) -> PerImage:
    """Return the score of each image, and its label where the file has labels."""
    name, colon, inside = text.partition(".npz:")
    file = f"{name}.npz" if colon else text
    path = folder / file if (folder / file).exists() else Path(file)
    try:
        return _per_image(_arrays(path, inside))
    except OSError as error:
        raise InputError(f"{place}: {path} cannot be read: {error.strerror}") from error
    except BROKEN_ARCHIVE as error:
        raise InputError(
            f"{place}: {path} must hold 'correct', or 'label' and 'prediction', one number for"
            " each image"
        ) from error


def _arrays(path: Path, inside: str) -> Arrays:
    content = read_bounded(path, MAX_BYTES)
    if path.suffix == ".npy":
        return {"correct": read_array(content)}
    if path.suffix != ".csv":
        return read_outputs(content, inside)
    header, *rows = (cells for _, cells in read_csv(csv_text(content, str(path)), str(path)))
    return dict(zip(header, np.array(rows, np.float64).T, strict=True))


def _per_image(arrays: Arrays) -> PerImage:
    known = {NAMES.get(name, name): array for name, array in arrays.items()}
    labels = np.asarray(known.get("label", ()), np.int64)
    scores = known.get("correct")
    if scores is None:
        scores, labels = correct(known | {"labels": labels})
    found = PerImage(scores, labels)
    if not found.is_sound:
        raise ValueError
    return found
