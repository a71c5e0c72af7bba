"""Where a model looks, as one number a patch, by several methods.

Axes: B batch, K classes, h num_heads, N tokens (prefix first), gh gw patch grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.inspect.grad_cam import grad_cam
from vitcli.core.inspect.rollout import grad_rollout, rollout
from vitcli.core.models.vit import VisionTransformer


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a model about images.

    ``layers`` are counted from 0; -1 stands for the embedded patches, which only Grad-CAM can look
    at. ``query`` is the (row, column) of a patch whose attention is
    asked for; without one it is the attention behind the read-out: of CLS, or of the patches that
    are pooled. ``classes`` (B,) matter to the methods that explain one class.
    """

    model: VisionTransformer
    images: Tensor
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None = None
    query: tuple[int, int] | None = None
    classes: Tensor | None = None


@torch.no_grad()
def cls_attention(ask: Question) -> Tensor:
    """What CLS (or the queried patch) attends to, averaged over layers and heads: (B, gh, gw).

    Raises:
        ValueError: There is no CLS token and no patch was named.
    """
    if ask.model.cls_token is None and ask.query is None:
        raise ValueError(
            f"the model has no CLS token (it pools by {ask.model.spec.pool!r}); use the method"
            " rollout, or name a patch with --query"
        )
    return head_maps(ask).mean((1, 2))


@torch.no_grad()
def head_maps(ask: Question) -> Tensor:
    """What the read-out (or the queried patch) attends to, by layer and head: (B, L, h, gh, gw)."""
    found = ask.model.attention_weights(ask.images, ask.layers)
    rows = asked_row(ask)  # (B, N)
    maps = torch.stack([_rows(found[layer], rows) for layer in ask.layers], dim=1)
    if ask.heads is not None:
        maps = maps[:, :, list(ask.heads)]
    return on_grid(ask.model, maps)


@torch.no_grad()
def raw_weights(ask: Question) -> Tensor:
    """The attention matrices, prefix tokens included: (B, L, h, N, N), rows sum to 1."""
    found = ask.model.attention_weights(ask.images, ask.layers)
    weights = torch.stack([found[layer] for layer in ask.layers], dim=1)
    return weights if ask.heads is None else weights[:, :, list(ask.heads)]


@torch.no_grad()
def rollout_map(ask: Question) -> Tensor:
    """Attention rollout from the input to the last of the layers: (B, gh, gw)."""
    weights = ask.model.attention_weights(ask.images, range(max(ask.layers) + 1))
    through = rollout(weights.values(), residual=ask.model.spec.residual != "none")
    return on_grid(ask.model, _rows(through, asked_row(ask)))


def grad_rollout_map(ask: Question) -> Tensor:
    """Relevance of each patch for the class, as far as attention moved it: (B, gh, gw).

    The identity that the relevance starts from is taken off again: in the row of CLS it stands
    beside the patches, but where patches are pooled it would lift all of them alike.
    """
    relevance, _ = grad_rollout(ask.model, ask.images, ask.classes)
    with torch.no_grad():
        row = asked_row(ask)
        moved = _rows(relevance, row)
        if ask.model.spec.residual != "none":
            moved = moved - row
        return on_grid(ask.model, moved)


def grad_cam_map(ask: Question) -> Tensor:
    """Where the patches that leave the last of the layers speak for the class: (B, gh, gw)."""
    return grad_cam(ask.model, ask.images, ask.classes, max(ask.layers) + 1)


METHODS: dict[str, Callable[[Question], Tensor]] = {
    "cls": cls_attention,
    "rollout": rollout_map,
    "grad-rollout": grad_rollout_map,
    "gradcam": grad_cam_map,
}
"""One map an image."""
METHODS_BY_HEAD: dict[str, Callable[[Question], Tensor]] = {"head": head_maps, "raw": raw_weights}
"""One map, or one matrix, a layer and head."""


def default_method(model: VisionTransformer) -> str:
    """``cls`` where there is such a token, else ``rollout``."""
    return "rollout" if model.cls_token is None else "cls"


def asked_row(ask: Question) -> Tensor:
    """The tokens whose attention is asked for, as shares that sum to 1: (B, N)."""
    model = ask.model
    if ask.query is None:
        return model.pool.weights(model.forward_features(ask.images))
    (height, width), (row, column) = model.grid_size, ask.query
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"the patch ({row}, {column}) is outside the grid of {height}x{width}")
    count = model.num_prefix_tokens + height * width
    place = model.num_prefix_tokens + row * width + column
    return torch.eye(count)[place].to(ask.images).expand(len(ask.images), -1)


def on_grid(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """One number a token (..., N) -> one a patch (..., gh, gw); the prefix is left out."""
    return tokens[..., model.num_prefix_tokens :].unflatten(-1, model.grid_size)


def _rows(weights: Tensor, shares: Tensor) -> Tensor:
    """The mean row of (B, ..., N, N), taken with shares (B, N): (B, ..., N)."""
    shares = shares.view(len(shares), *[1] * (weights.ndim - 3), 1, -1)
    return (shares @ weights).squeeze(-2)


def check_layers(model: VisionTransformer, layers: Sequence[int]) -> tuple[int, ...]:
    """Layers from 1 on, or from -1 backwards, as indices from 0 on.

    Raises:
        ValueError: There is no such layer.
    """
    depth = len(model.blocks)
    for layer in layers:
        if layer == 0 or abs(layer) > depth:
            raise ValueError(
                f"layer {layer} is out of range: the model has layers 1 to {depth} (-1 is the last)"
            )
    return tuple(layer - 1 if layer > 0 else depth + layer for layer in layers)
