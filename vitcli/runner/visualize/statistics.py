"""Means over images with their intervals."""

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


def plus_minus(mean: float, error: float | None, form: str = "+.2f") -> str:
    """Return text such as ``+1.39 +- 0.04``, without the second part if the error is None."""
    return format(mean, form) + ("" if error is None else f" +- {error:{form.lstrip('+z')}}")
