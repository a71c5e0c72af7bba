"""Distance and entropy of attention by layer and head, of a trained model and of untrained ones.

Axes: n images, L layers, h heads.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.inspect.maps import attention_entropy
from vitcli.core.models.vit import VisionTransformer
from vitcli.plugins.distance import statistics
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.experiment.build import encoder_of, new_module

NUM_MODELS = 8
NUM_IMAGES = 64
"""Few images suffice, because untrained models differ less between images than between seeds."""


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
    size, patch, first = model.grid_size, model.spec.patch_size, model.num_prefix_tokens
    rows: list[list[Tensor]] = []
    similarity = []
    for _, images in batches:
        with torch.no_grad():
            layers = list(model.attention_weights(images).values())
        of_cls = [weights[:, :, :1, first:] for weights in layers]  # (B, h, 1, P) each
        shares = [row / row.sum(-1, keepdim=True).clamp(min=statistics.TINY) for row in of_cls]
        by_layer = [
            [statistics.attention_distance(weights, size, patch) for weights in layers],
            [statistics.near_share(weights, size) for weights in layers],
            [attention_entropy(weights) for weights in layers],
            [attention_entropy(share) for share in shares],
            [row[:, :, 0].sum(-1) for row in of_cls],
        ]
        rows.append([torch.stack(values, 1) for values in by_layer])
        similarity.append(
            torch.stack([statistics.head_similarity(w) for w in layers]) * len(images)
        )
    distance, near, entropy, cls_entropy, cls_to_patches = (
        torch.cat(part).cpu() for part in zip(*rows, strict=True)
    )
    return AttentionNumbers(
        distance=distance,
        near=near,
        entropy=entropy,
        cls_entropy=None if model.cls_token is None else cls_entropy,
        cls_to_patches=None if model.cls_token is None else cls_to_patches,
        similarity=torch.stack(similarity).sum(0).cpu() / len(distance),
        uniform=statistics.uniform_distance(size, patch),
        uniform_near=statistics.uniform_near_share(size),
        num_patches=size[0] * size[1],
        num_tokens=layers[0].shape[-1],
    )


@dataclass(frozen=True, kw_only=True)
class UntrainedModels:
    """The numbers of untrained models, all on the same test images."""

    seeds: tuple[int, ...]
    """Random seeds of the initial weights: the seed of the run and the next ones."""
    num_images: int
    models: tuple[AttentionNumbers, ...]


def measure_untrained(tested: TrainedRun) -> UntrainedModels:
    first = tested.spec.seed
    seeds = tuple(range(first, first + NUM_MODELS))
    index = tested.spread_images(min(NUM_IMAGES, tested.num_images))
    models = (untrained_model(tested, seed) for seed in seeds)
    numbers = tuple(measure_attention(model, tested.batches(index)) for model in models)
    return UntrainedModels(seeds=seeds, num_images=len(index), models=numbers)


def untrained_model(tested: TrainedRun, seed: int) -> VisionTransformer:
    spec = tested.spec.replace(seed=seed)
    model = encoder_of(spec, new_module(spec))
    assert isinstance(model, VisionTransformer)
    return model.to(tested.device).eval()
