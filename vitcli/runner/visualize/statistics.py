"""Means over images and how sure they are."""

from scipy import stats
from torch import Tensor

LEVEL = 0.95


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Mean of (n,) and half its 95 % t interval over images; None with one image."""
    values = values.double()
    count = len(values)
    if count < 2:
        return values.mean().item(), None
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return values.mean().item(), quantile * values.std().item() / count**0.5


def plus_minus(mean: float, error: float | None, form: str = "+.2f") -> str:
    """Such as ``+1.39 +- 0.04``; the second part is left out where it is not known."""
    return format(mean, form) + ("" if error is None else f" +- {error:{form.lstrip('+')}}")
