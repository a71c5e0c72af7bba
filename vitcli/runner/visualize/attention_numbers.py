"""Distance and entropy of attention by layer and head, over many images.

Axes: n images, L layers, h heads.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.inspect.statistics import (
    TINY,
    attention_distance,
    attention_entropy,
    head_similarity,
    near_share,
    uniform_distance,
    uniform_near_share,
)
from vitcli.core.models.vit import VisionTransformer


@dataclass(frozen=True, kw_only=True)
class AttentionNumbers:
    """Statistics of attention for each image, so that the spread over images is known."""

    distance: Tensor
    """Mean distance in pixels, (n, L, h)."""
    near: Tensor
    """Share of a patch's attention to itself and its eight neighbours, (n, L, h)."""
    entropy: Tensor
    """Entropy in nats, (n, L, h)."""
    cls_entropy: Tensor | None
    """Entropy of CLS's attention to patches in nats, (n, L, h)."""
    cls_to_patches: Tensor | None
    """Share of CLS's attention that goes to patches, (n, L, h)."""
    similarity: Tensor
    """Mean cosine between two different heads of a layer, (L,); NaN for one head."""
    uniform: float
    """Distance of uniform attention in pixels."""
    uniform_near: float
    """``near`` of uniform attention."""
    num_patches: int
    num_tokens: int


def measure_attention(
    model: VisionTransformer, batches: Iterable[tuple[Tensor, Tensor]]
) -> AttentionNumbers:
    """Return the statistics of images; each batch is their indices (B,) and (B, C, H, W)."""
    size, patch = model.grid_size, model.spec.patch_size
    rows: list[list[Tensor]] = []
    similarity = []
    for _, images in batches:
        with torch.no_grad():
            layers = list(model.attention_weights(images).values())
        rows.append(
            [
                torch.stack([attention_distance(w, size, patch) for w in layers], 1),
                torch.stack([near_share(w, size) for w in layers], 1),
                torch.stack([attention_entropy(w) for w in layers], 1),
                torch.stack([_cls_entropy(w, model) for w in layers], 1),
                torch.stack([_cls_to_patches(w, model) for w in layers], 1),
            ]
        )
        similarity.append(torch.stack([_between_heads(w) for w in layers]) * len(images))
    distance, near, entropy, cls_entropy, to_patches = (
        torch.cat(part).cpu() for part in zip(*rows, strict=True)
    )
    return AttentionNumbers(
        distance=distance,
        near=near,
        entropy=entropy,
        cls_entropy=None if model.cls_token is None else cls_entropy,
        cls_to_patches=None if model.cls_token is None else to_patches,
        similarity=torch.stack(similarity).sum(0).cpu() / len(distance),
        uniform=uniform_distance(size, patch),
        uniform_near=uniform_near_share(size),
        num_patches=size[0] * size[1],
        num_tokens=layers[0].shape[-1],
    )


def _cls_entropy(weights: Tensor, model: VisionTransformer) -> Tensor:
    """Return the entropy of the first token's attention to patches: (B, h, N, N) -> (B, h)."""
    row = weights[:, :, :1, model.num_prefix_tokens :]
    return attention_entropy(row / row.sum(-1, keepdim=True).clamp(min=TINY))


def _cls_to_patches(weights: Tensor, model: VisionTransformer) -> Tensor:
    """Return the share of the first token's attention to patches: (B, h, N, N) -> (B, h)."""
    return weights[:, :, 0, model.num_prefix_tokens :].sum(-1)


def _between_heads(weights: Tensor) -> Tensor:
    """Return the mean cosine of two different heads; NaN for one head."""
    table = head_similarity(weights)
    count = len(table)
    if count == 1:
        return torch.tensor(math.nan)
    return (table.sum() - table.trace()) / (count * (count - 1))
