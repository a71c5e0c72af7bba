"""Split conformal prediction: sets of classes that hold the true class at a chosen rate.

A set holds each class whose probability reaches a threshold. It is empty if no class does.
"""

import math

from torch import Tensor

COVERAGES = (0.8, 0.9, 0.95, 0.99)
"""Shares of the images whose sets hold the true class; a training measures a threshold for each."""


def set_threshold(logits: Tensor, labels: Tensor, coverage: float) -> float:
    """Return the least probability of a class in a set; 0, so all classes, with too few images.

    Over all choices of N + 1 exchangeable images, the set of the last holds its class with a
    probability of at least ``coverage``, and at most 1 / (N + 1) more without ties. That is so for
    any classifier, if these images have fitted neither it nor a temperature. The score is 1 -
    probability of the true class. Vovk et al. 2005, Algorithmic Learning in a Random World;
    Angelopoulos and Bates 2021, https://arxiv.org/abs/2107.07511

    Args:
        logits: (N, K).
        labels: (N,).
        coverage: Between 0 and 1.
    """
    shares = logits.double().cpu().softmax(1).gather(1, labels.cpu()[:, None]).squeeze(1)
    rank = math.ceil(round((len(shares) + 1) * coverage, 9))  # 100 * 0.07 is 7.000000000000001
    return 0.0 if rank > len(shares) else shares.sort(descending=True).values[rank - 1].item()
