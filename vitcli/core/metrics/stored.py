"""Stored outputs of tasks, as arrays. No torch. Axes: N images, K classes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def check_predictions(arrays: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return logits (N, K) and labels (N,) after checking that they fit."""
    logits, labels = arrays["logits"], arrays["labels"]
    fits = logits.ndim == 2 and labels.shape == logits.shape[:1] and len(labels) > 0
    if not (fits and bool(((labels >= 0) & (labels < logits.shape[1])).all())):
        raise ValueError("its labels do not fit its logits")
    return logits, labels


def condense(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return ``label``, ``prediction`` and ``probability`` (of the label, float16), each (N,)."""
    logits, labels = check_predictions(arrays)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True).astype(np.float64))
    share = shifted[np.arange(len(labels)), labels] / shifted.sum(axis=1)
    kind = np.min_scalar_type(logits.shape[1] - 1)
    return {
        "label": labels.astype(kind),
        "prediction": logits.argmax(axis=1).astype(kind),
        "probability": share.astype(np.float16),
    }


def condense_errors(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return ``masked_mse`` of each image as float16, (N,)."""
    return {"masked_mse": arrays["masked_mse"].astype(np.float16)}


def correct(arrays: Arrays) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return whether outputs, condensed or not, are right, and the labels: (N,) and (N,)."""
    if "prediction" in arrays:
        labels = arrays["label"]
        return arrays["prediction"] == labels, labels.astype(np.int64)
    logits, labels = check_predictions(arrays)
    return logits.argmax(1) == labels, labels.astype(np.int64)


def errors(arrays: Arrays) -> tuple[NDArray[Any], None]:
    """Return the error of each reconstruction, (N,). The outputs may be condensed."""
    return arrays["masked_mse"], None
