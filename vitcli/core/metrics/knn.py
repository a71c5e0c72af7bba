"""Probes: classifiers on frozen features, which measure what the features know.

Axes: N images, F features, K classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = 20
TEMPERATURE = 0.07
QUERIES = 1000
"""Number of images whose similarities are computed at a time."""


def knn_logits(train: Tensor, labels: Tensor, test: Tensor, num_classes: int) -> Tensor:
    """Return the votes of the nearest training images as logits: (M, F), (M,), (N, F) -> (N, K).

    The vote of an image with cosine similarity s counts exp(s / ``TEMPERATURE``).
    Wu et al. 2018, https://arxiv.org/abs/1805.01978, section 3.4.
    """
    keys, queries = F.normalize(train, dim=1), F.normalize(test, dim=1)
    count = min(NEIGHBOURS, len(keys))
    parts = queries.split(QUERIES)
    return torch.cat([_vote(part @ keys.T, labels, num_classes, count) for part in parts])


def leave_one_out_knn(
    features: Tensor, labels: Tensor, num_classes: int, groups: Tensor | None = None
) -> Tensor:
    """Return for each image the votes of the other images, as ``knn_logits`` does: (N, K).

    Images of one group, by its number in ``groups`` (N,), do not vote for each other.
    """
    keys = F.normalize(features, dim=1)
    groups = torch.arange(len(keys), device=keys.device) if groups is None else groups
    parts, count = [], min(NEIGHBOURS, len(keys) - 1)
    for part, own in zip(keys.split(QUERIES), groups.split(QUERIES), strict=True):
        similarity = (part @ keys.T).masked_fill(own[:, None] == groups, -torch.inf)
        parts.append(_vote(similarity, labels, num_classes, count))
    return torch.cat(parts)


def _vote(similarity: Tensor, labels: Tensor, num_classes: int, count: int) -> Tensor:
    """Return the logarithm of the summed votes of the most similar columns: (n, M) -> (n, K)."""
    near, index = similarity.topk(count, dim=1)
    votes = torch.zeros(len(near), num_classes, device=near.device, dtype=near.dtype)
    # Divided by the largest possible vote, so that no sum overflows.
    votes.scatter_add_(1, labels[index], ((near - 1) / TEMPERATURE).exp())
    return votes.clamp(min=torch.finfo(votes.dtype).tiny).log()
