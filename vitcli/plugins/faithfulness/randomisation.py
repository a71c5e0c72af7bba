"""Whether a map depends on the model's weights: layers are re-initialised from the head downwards.

Adebayo et al. 2018, "Sanity Checks for Saliency Maps", https://arxiv.org/abs/1810.03292, section 3:
the cascading randomisation. A map that stays the same while layers lose their trained weights does
not show what these layers learned.

Axes: B batch, gh gw patch grid, P = gh gw patches.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from vitcli.core.models.vit import VisionTransformer


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
    one, other = (_centred_ranks(values.flatten(1)) for values in (maps, others))
    scale = one.norm(dim=1) * other.norm(dim=1)
    return torch.where(scale > 0, (one * other).sum(1) / scale.clamp(min=1e-12), 0.0)


def _centred_ranks(values: Tensor) -> Tensor:
    """Return mean ranks minus their mean: (B, P) -> (B, P), float64."""
    below = (values[:, :, None] > values[:, None]).double().sum(2)
    equal = (values[:, :, None] == values[:, None]).double().sum(2)
    ranks = below + (equal - 1) / 2
    return ranks - ranks.mean(1, keepdim=True)
