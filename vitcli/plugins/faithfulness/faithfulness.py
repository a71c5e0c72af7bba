"""Faithfulness of a map: how the model's answer changes when the map's highest patches are removed.

And whether a map depends on the model's weights: layers are re-initialised from the head downwards.
Adebayo et al. 2018, "Sanity Checks for Saliency Maps", https://arxiv.org/abs/1810.03292, section 3:
the cascading randomisation. A map that stays the same while layers lose their trained weights does
not show what these layers learned.

Axes: B batch, C channels, H W pixels, K classes, gh gw patch grid, P = gh gw patches, S points.
"""

import copy
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from scipy.stats import rankdata
from torch import Tensor

from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer


def ranks(maps: Tensor) -> Tensor:
    """Return the ranks of patches, 0 the highest, ties in reading order: (B, gh, gw) -> (B, P)."""
    return maps.flatten(1).argsort(dim=1, descending=True, stable=True).argsort(dim=1)


@torch.no_grad()
def probability_curve(
    model: ImageModel,
    images: Tensor,
    maps: Tensor,
    classes: Tensor,
    counts: list[int],
    *,
    inserts: bool,
) -> Tensor:
    """Return the probability of a class while the highest patches are removed or inserted: (B, S).

    (B, C, H, W) normalised, (B, gh, gw), (B,). ``counts`` has the number of patches at each point.
    Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421. The paper removes pixels; this function
    removes patches. A removed patch becomes 0, which is the mean colour of normalised images. An
    insertion starts from an image of this colour; the paper starts from a blurred image.
    """
    rank = ranks(maps).view_as(maps)  # (B, gh, gw)
    probabilities = []
    for count in counts:
        kept = (rank < count) if inserts else (rank >= count)
        logits = model(images * enlarge(kept.to(images.dtype), images))
        probabilities.append(logits.float().softmax(-1).gather(1, classes[:, None])[:, 0])
    return torch.stack(probabilities, dim=1)


def enlarge(values: Tensor, images: Tensor) -> Tensor:
    """Repeat the value of each patch for its pixels: (B, gh, gw), (B, C, H, W) -> (B, 1, H, W)."""
    return F.interpolate(values[:, None], size=images.shape[-2:], mode="nearest")


def area(curves: Tensor, counts: list[int]) -> Tensor:
    """Return the area under curves over the share of patches, between 0 and 1: (B, S) -> (B,)."""
    shares = torch.tensor(counts, dtype=curves.dtype, device=curves.device) / counts[-1]
    return torch.trapezoid(curves, shares, dim=1)


def centre_map(grid_size: tuple[int, int]) -> Tensor:
    """Return a Gaussian centred on the grid: (gh, gw).

    Its standard deviation is a quarter of each side. The map is a baseline that ignores the picture
    and uses only that photographers centre their subject.
    """
    height, width = grid_size
    y = (torch.arange(height) - (height - 1) / 2) / (height / 4)
    x = (torch.arange(width) - (width - 1) / 2) / (width / 4)
    return torch.exp(-(y[:, None] ** 2 + x**2) / 2)


def removal_counts(num_patches: int) -> list[int]:
    """Return up to 17 evenly spaced numbers of patches, from 0 to all patches."""
    last = min(16, num_patches)
    return [math.floor(num_patches * i / last + 0.5) for i in range(last + 1)]


def cascade_parts(depth: int) -> dict[str, tuple[str, ...]]:
    """Return the parts of a model in the order of the cascade, each with its tensors' prefixes."""
    blocks = {f"block {layer}": (f"blocks.{layer - 1}.",) for layer in range(depth, 0, -1)}
    return {"head": ("head.", "head_dist.", "norm.", "pool."), **blocks, "embedding": ("",)}


@torch.no_grad()
def randomised_cascade(
    trained: VisionTransformer, fresh: VisionTransformer
) -> Iterator[tuple[str, VisionTransformer]]:
    """Yield each part's name and the model after this part was re-initialised.

    The head is re-initialised first, with the last norm and the pooling; then each block, the last
    one first; then everything else. They take over the weights of ``fresh``, of the same
    architecture, and stay re-initialised. Every step yields the same copy of ``trained``, which the
    next step changes.
    """
    model = copy.deepcopy(trained)
    state, initial = model.state_dict(), fresh.state_dict()
    for part, prefixes in cascade_parts(len(model.blocks)).items():
        for name in [name for name in initial if name.startswith(prefixes)]:
            state[name].copy_(initial.pop(name))
        yield part, model


def rank_correlation(maps: Tensor, others: Tensor) -> Tensor:
    """Return Spearman's rank correlation of each pair of maps: (B, gh, gw) twice -> (B,).

    Equal values share their mean rank. A map that is the same everywhere ranks nothing; its
    correlation is 0.
    """
    ranks = [rankdata(values.flatten(1).cpu(), axis=1) for values in (maps, others)]
    one, other = (torch.from_numpy(each - each.mean(1, keepdims=True)) for each in ranks)
    scale = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(scale > 0, (one * other).sum(1) / scale.clamp(min=1e-12), 0.0)
