"""Temperature scaling: one number that makes the confidence of a classifier honest."""

from torch import Tensor

RANGE = (0.05, 20.0)
"""Smallest and largest temperature."""
STEPS = 50
"""Halvings of the range: enough for fp64."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """Return the T for which logits / T have the smallest cross-entropy.

    Above 1, the classifier was too sure. T changes no prediction. If all predictions are right, the
    smallest T is the best, and if the logits say nothing, the largest; that helps no other images.
    Then, or if the best T is outside ``RANGE``, None is returned. The loss is convex in 1 / T, so
    its slope is bisected. Guo et al. 2017, https://arxiv.org/abs/1706.04599

    Args:
        logits: (N, K) of images that the training has not seen.
        labels: (N,).
    """
    logits = logits.double().cpu()
    right = logits.gather(1, labels.cpu()[:, None]).squeeze(1)
    if (logits.max(1).values == right).all():
        return None
    low, high = (1 / bound for bound in reversed(RANGE))
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        expected = ((middle * logits).softmax(1) * logits).sum(1)
        if (expected - right).mean() < 0:
            low = middle
        else:
            high = middle
    found = 1 / (low * high) ** 0.5
    return found if RANGE[0] * 1.001 < found < RANGE[1] / 1.001 else None
