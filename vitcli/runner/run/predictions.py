"""What a run predicted for its test images: the file that statistics are made from. No torch."""

import io
import zipfile
import zlib

import numpy as np
from numpy.typing import NDArray

BROKEN_ARCHIVE = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, ArithmeticError),
    *(NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
)
"""What numpy raises where bytes are no archive of arrays, or where arrays are not as expected."""


def read_predictions(content: bytes) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Logits (N, K) and labels (N,) of a predictions.npz.

    Raises:
        ValueError: These are not the bytes of such a file.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            logits, labels = file["logits"], file["labels"]
        fits = logits.ndim == 2 and labels.shape == logits.shape[:1] and len(labels) > 0
        fits = fits and bool(((labels >= 0) & (labels < logits.shape[1])).all())
    except BROKEN_ARCHIVE as error:  # numpy's own words advise to unpickle it
        raise ValueError("not an archive of logits and labels") from error
    if not fits:
        raise ValueError("its labels do not belong to its logits")
    return logits, labels


def accuracy_of(content: bytes) -> tuple[float, int]:
    """Share of the images whose largest logit is at the label, and their number.

    Raises:
        ValueError: These are not the bytes of a predictions.npz.
    """
    logits, labels = read_predictions(content)
    return float((logits.argmax(1) == labels).mean()), len(labels)
