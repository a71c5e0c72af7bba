"""Stored outputs of a regression, as arrays. No torch. Axis: N images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def errors(arrays: Arrays) -> tuple[NDArray[Any], None]:
    """Return the absolute error of each image, (N,). The outputs may be condensed."""
    if "absolute_error" in arrays:
        return arrays["absolute_error"], None
    return np.abs(arrays["predictions"].astype(np.float64) - arrays["targets"]), None


def condense(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return ``absolute_error`` of each image in fp32, (N,)."""
    return {"absolute_error": errors(arrays)[0].astype(np.float32)}
