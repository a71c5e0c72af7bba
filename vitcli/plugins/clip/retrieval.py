"""Retrieval: how well images find captions in a joint space, and captions images.

Axes: N queries, M items, E width of the joint space.
"""

import torch
from torch import Tensor

AT_ONCE = 1024
"""Number of queries whose similarities are held at once."""


def distinct(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place of each different number, sorted by number, and the place of its twin.

    (N,) -> (U,) places in ``numbers``, (N,) places in the first result.
    """
    values, twin = numbers.unique(return_inverse=True)
    place = torch.arange(len(numbers), device=numbers.device)
    first = torch.full_like(values, len(numbers)).scatter_reduce(0, twin, place, "amin")
    return first, twin


def ranks(queries: Tensor, items: Tensor, subject: Tensor, of_item: Tensor) -> Tensor:
    """Return how many items of other subjects precede the best item of a query's subject: (N,).

    Queries (N, E) and items (M, E) are unit vectors; a query's right items have its number. 0 means
    that only the right items are most similar. An item of another subject that is as similar as the
    best one precedes it, so vectors that are all equal retrieve nothing.
    """
    found = []
    for part, own in zip(queries.split(AT_ONCE), subject.split(AT_ONCE), strict=True):
        similar, is_own = part @ items.mT, own[:, None] == of_item  # (n, M)
        best = similar.masked_fill(~is_own, float("-inf")).amax(1, keepdim=True)
        found.append(((similar >= best) & ~is_own).sum(1))
    return torch.cat(found)


def recall(ranks: Tensor, count: int) -> float:
    """Return the share of ranks below ``count``."""
    return (ranks < count).double().mean().item()
