"""The contrastive loss, prompt ensembles and retrieval.

Axes: B batch, K classes, V prompts of a class, N queries, M items, E width of the joint space.
Radford et al. 2021, https://arxiv.org/abs/2103.00020
"""

import torch
import torch.nn.functional as F
from torch import Tensor

AT_ONCE = 1024
"""Number of queries whose similarities are held at once."""


def contrastive_loss(images: Tensor, texts: Tensor, scale: Tensor, caption: Tensor) -> Tensor:
    """Return the symmetric cross-entropy of similarities in a batch.

    An image's targets are all texts that equal its own caption, with equal probability, and vice
    versa. CLIP has only its own caption as target, because equal captions are rare in its data.
    Swapping images and texts does not change the loss.

    Args:
        images: Unit vectors (B, E).
        texts: Unit vectors (B, E) of the captions.
        scale: Factor of the similarities, a scalar: the inverse of the temperature.
        caption: (B,) int64; equal captions have equal numbers.
    """
    logits = scale * images @ texts.mT
    same = (caption[:, None] == caption[None]).to(logits.dtype)
    targets = same / same.sum(1, keepdim=True)
    return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.mT, targets)) / 2


def loss_floor(subject: Tensor) -> Tensor:
    """Return the smallest loss that a batch allows on average, as a scalar.

    Captions of one subject describe its images equally well, because the template is drawn anew in
    every epoch. So the best model spreads the probability over the captions with the subject, and
    the loss is the mean logarithm of their number. With 10 classes and 128 images this is 2.5.

    Args:
        subject: (B,) int64: what each caption says.
    """
    return (subject[:, None] == subject[None]).sum(1).float().log().mean()


def ensemble(prompts: Tensor) -> Tensor:
    """Return the mean direction of the prompts of a class: (K, V, E) -> unit vectors (K, E)."""
    return F.normalize(F.normalize(prompts, dim=-1).mean(1), dim=-1)


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

    0 means that the most similar item is right. The function serves both ways of retrieval.

    Args:
        queries: Unit vectors (N, E) of images or captions.
        items: Unit vectors (M, E) of what is retrieved.
        subject: (N,) int64: what each query shows or says. An item has the same number.
        of_item: (M,) int64, the subject of each item.
    """
    found = []
    for part, own in zip(queries.split(AT_ONCE), subject.split(AT_ONCE), strict=True):
        similar, is_own = part @ items.mT, own[:, None] == of_item  # (n, M)
        best = similar.masked_fill(~is_own, float("-inf")).amax(1, keepdim=True)
        found.append(((similar > best) & ~is_own).sum(1))
    return torch.cat(found)


def recall(ranks: Tensor, count: int) -> float:
    """Return the share of ranks below ``count``."""
    return (ranks < count).double().mean().item()
