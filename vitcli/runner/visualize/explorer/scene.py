"""The numbers of one picture that the explorer shows.

Axes: H W pixels of the picture, gh gw patch grid, L layers, h heads, N tokens (prefix first).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitcli.core.inspect.rollout import rollouts
from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.errors import InputError

NUM_CLASSES = 5
"""How many of the likeliest classes are named."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture, what a model says it is, and what every token of it attends to."""

    name: str
    picture: np.ndarray
    """(H, W, 3) uint8, as it is shown."""
    box: tuple[int, int, int, int]
    """What the model saw of it: top, left, height, width."""
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    """The names of the tokens before the patches."""
    layers: tuple[int, ...]
    """From 1 on; those that ``attention`` and ``rollout`` hold."""
    attention: np.ndarray
    """(L, h, N, N): a row is a query, a column a key; a row sums to 1."""
    rollout: np.ndarray
    """(L, N, N): attention rollout from the input to this layer; a row sums to 1."""
    pool: str
    """How the classifier reads tokens out: cls, mean or seq."""
    reading: np.ndarray
    """(N,): how much of each token it reads; sums to 1."""
    classes: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, best first."""


@torch.no_grad()
def make_scene(
    model: VisionTransformer,
    images: Tensor,
    *,
    name: str,
    picture: np.ndarray,
    box: tuple[int, int, int, int],
    class_names: Sequence[str],
    layers: Sequence[int] | None = None,
) -> Scene:
    """Run the explicit path once over one picture.

    Args:
        model: In eval mode.
        images: (1, C, H, W), normalised; what the model is given.
        picture: (H, W, 3) uint8; what is shown.
        box: The part of it that ``images`` holds: top, left, height, width.
        layers: From 0 on; all unless given.

    Raises:
        InputError: The model's attention to this picture is not finite.
    """
    logits, found = model.forward_with_weights(images)
    held = range(len(model.blocks)) if layers is None else layers
    through = list(rollouts(found.values(), residual=model.spec.residual != "none"))
    attention = torch.stack([found[i][0] for i in held])
    if not attention.isfinite().all():
        raise InputError(f"{name}: the model's attention to this picture is not finite")
    shares, indices = logits[0].softmax(-1).topk(min(NUM_CLASSES, len(class_names)))
    best = zip(indices.tolist(), shares.tolist(), strict=True)
    return Scene(
        name=name,
        picture=picture,
        box=box,
        grid=model.grid_size,
        prefix=prefix_names(model),
        layers=tuple(i + 1 for i in held),
        attention=as_array(attention),
        rollout=as_array(torch.stack([through[i][0] for i in held])),
        pool=model.spec.pool,
        reading=as_array(model.pool.weights(model.forward_features(images))[0]),
        classes=tuple((class_names[i], share) for i, share in best),
    )


def prefix_names(model: VisionTransformer) -> tuple[str, ...]:
    """``CLS`` where there is one, then ``register 1`` and so on."""
    cls = () if model.cls_token is None else ("CLS",)
    return cls + tuple(f"register {i + 1}" for i in range(model.spec.reg_tokens))


def as_array(tensor: Tensor) -> np.ndarray:
    """float32 on the CPU, as numpy."""
    array: np.ndarray = tensor.float().cpu().numpy()
    return array
