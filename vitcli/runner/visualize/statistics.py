"""Means over images with their intervals."""

from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats
from torch import Tensor

LEVEL = 0.95


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Return the mean of (n,) and half its 95 % t interval over images; None for one image."""
    values = values.double()
    count = len(values)
    if count < 2:
        return values.mean().item(), None
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return values.mean().item(), quantile * values.std().item() / count**0.5


def prediction_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % prediction interval for one more value: a t interval from two values on.

    The additional value is expected inside, if it has the same normal distribution.
    """
    count, middle = len(values), fmean(values)
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    half = quantile * stdev(values) * (1 + 1 / count) ** 0.5
    return middle - half, middle + half


def plus_minus(mean: float, error: float | None, form: str = "+.2f") -> str:
    """Return text such as ``+1.39 +- 0.04``, without the second part if the error is None."""
    return format(mean, form) + ("" if error is None else f" +- {error:{form.lstrip('+z')}}")
