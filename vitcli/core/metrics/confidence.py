"""How far a classifier's confidence is to be trusted: temperature scaling and conformal prediction.

Temperature scaling is one number that makes the confidence honest. Split conformal prediction gives
sets of classes that hold the true class at a chosen rate: a set holds each class whose probability
reaches a threshold, and is empty if no class does.
"""

import math

from torch import Tensor

RANGE = (0.05, 20.0)
"""Smallest and largest temperature."""
STEPS = 50
"""Halvings of the range: enough for fp64."""
MIN_WRONG = 10
"""Least number of images classified wrongly that a temperature below 1 needs."""


def fit_temperature(logits: Tensor, labels: Tensor) -> float | None:
    """Return the T for which logits (N, K) / T have the smallest cross-entropy.

    The training must not have seen the images. Above 1, the classifier was too sure. T changes no
    prediction. If all predictions are right, the smallest T is the best, and if the logits say
    nothing, the largest; that helps no other images. Then, or if the best T is outside ``RANGE``,
    None is returned. The loss is convex in 1 / T, so its slope is bisected. Guo et al. 2017,
    https://arxiv.org/abs/1706.04599

    A T below 1 makes the classifier surer, and only wrong predictions limit how much. So below
    ``MIN_WRONG`` of them it is not returned: 1 / T is the coefficient of a logistic regression,
    which needs about 10 of the rarer outcome. Peduzzi et al. 1996, J. Clin. Epidemiol. 49:1373
    """
    logits = logits.double().cpu()
    right = logits.gather(1, labels.cpu()[:, None]).squeeze(1)
    num_wrong = int((logits.max(1).values != right).sum())
    if not num_wrong:
        return None
    low, high = (1 / bound for bound in reversed(RANGE))
    for _ in range(STEPS):
        middle = (low * high) ** 0.5
        expected = ((middle * logits).softmax(1) * logits).sum(1)
        if (expected - right).mean() < 0:
            low = middle
        else:
            high = middle
    temperature = 1 / (low * high) ** 0.5
    if temperature < 1 and num_wrong < MIN_WRONG:
        return None
    return temperature if RANGE[0] * 1.001 < temperature < RANGE[1] / 1.001 else None


COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""Shares of the images whose sets hold the true class; a training measures a threshold for each."""


def set_threshold(logits: Tensor, labels: Tensor, coverage: float) -> float:
    """Return the least probability of a class in a set; 0, so all classes, with too few images.

    Over all choices of N + 1 exchangeable images, the set of the last holds its class with a
    probability of at least ``coverage``, and at most 1 / (N + 1) more without ties. That is so for
    any classifier, if these images have fitted neither it nor a temperature. The score is 1 -
    probability of the true class. Vovk et al. 2005, Algorithmic Learning in a Random World;
    Angelopoulos and Bates 2021, https://arxiv.org/abs/2107.07511
    """
    shares = logits.double().cpu().softmax(1).gather(1, labels.cpu()[:, None]).squeeze(1)
    rank = math.ceil(round((len(shares) + 1) * coverage, 9))  # 100 * 0.07 is 7.000000000000001
    return 0.0 if rank > len(shares) else shares.sort(descending=True).values[rank - 1].item()
