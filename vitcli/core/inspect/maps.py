"""Where a model looks, as one number a patch, by several methods.

Axes: B batch, K classes, h num_heads, N tokens (prefix first), gh gw patch grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitcli.core.inspect.grad_cam import grad_cam
from vitcli.core.inspect.rollout import grad_rollout, rollout
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer


@dataclass(frozen=True, kw_only=True)
class MapRequest:
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
def cls_attention(request: MapRequest) -> Tensor:
    """What CLS (or the queried patch) attends to, averaged over layers and heads: (B, gh, gw).

    Raises:
        ValueError: There is no CLS token and no patch was named.
    """
    if request.model.cls_token is None and request.query is None:
        raise ValueError(
            f"the model has no CLS token (it pools by {request.model.spec.pool!r}); use the method"
            " rollout, or name a patch with --query"
        )
    return head_maps(request).mean((1, 2))


@torch.no_grad()
def head_maps(request: MapRequest) -> Tensor:
    """What the read-out (or the queried patch) attends to, by layer and head: (B, L, h, gh, gw)."""
    found = request.model.attention_weights(request.images, request.layers)
    rows = asked_row(request)  # (B, N)
    maps = torch.stack([_rows(found[layer], rows) for layer in request.layers], dim=1)
    if request.heads is not None:
        maps = maps[:, :, list(request.heads)]
    return on_grid(request.model, maps)


@torch.no_grad()
def raw_weights(request: MapRequest) -> Tensor:
    """The attention matrices, prefix tokens included: (B, L, h, N, N), rows sum to 1."""
    found = request.model.attention_weights(request.images, request.layers)
    weights = torch.stack([found[layer] for layer in request.layers], dim=1)
    return weights if request.heads is None else weights[:, :, list(request.heads)]


@torch.no_grad()
def rollout_map(request: MapRequest) -> Tensor:
    """Attention rollout from the input to the last of the layers: (B, gh, gw)."""
    weights = request.model.attention_weights(request.images, range(max(request.layers) + 1))
    through = rollout(weights.values(), residual=request.model.spec.residual != "none")
    return on_grid(request.model, _rows(through, asked_row(request)))


def grad_rollout_map(request: MapRequest) -> Tensor:
    """Relevance of each patch for the class, as far as attention moved it: (B, gh, gw).

    The identity that the relevance starts from is taken off again: in the row of CLS it stands
    beside the patches, but where patches are pooled it would lift all of them alike.
    """
    relevance, _ = grad_rollout(request.model, request.images, request.classes)
    with torch.no_grad():
        row = asked_row(request)
        moved = _rows(relevance, row)
        if request.model.spec.residual != "none":
            moved = moved - row
        return on_grid(request.model, moved)


def grad_cam_map(request: MapRequest) -> Tensor:
    """Where the patches that leave the last of the layers speak for the class: (B, gh, gw)."""
    return grad_cam(request.model, request.images, request.classes, max(request.layers) + 1)


METHODS: dict[str, Callable[[MapRequest], Tensor]] = {
    "cls": cls_attention,
    "rollout": rollout_map,
    "grad-rollout": grad_rollout_map,
    "gradcam": grad_cam_map,
}
"""One map an image."""
METHODS_BY_HEAD: dict[str, Callable[[MapRequest], Tensor]] = {"head": head_maps, "raw": raw_weights}
"""One map, or one matrix, a layer and head."""


def default_method(model: VisionTransformer) -> str:
    """``cls`` where there is such a token, else ``rollout``."""
    return "rollout" if model.cls_token is None else "cls"


def asked_row(request: MapRequest) -> Tensor:
    """The tokens whose attention is asked for, as shares that sum to 1: (B, N)."""
    model = request.model
    if request.query is None:
        return model.pool.weights(model.forward_features(request.images))
    (height, width), (row, column) = model.grid_size, request.query
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f"the patch ({row}, {column}) is outside the grid of {height}x{width}")
    count = model.num_prefix_tokens + height * width
    place = model.num_prefix_tokens + row * width + column
    return torch.eye(count)[place].to(request.images).expand(len(request.images), -1)


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


def attention_maps(
    model: ImageModel, images: Tensor, layers: Sequence[int] | None = None
) -> dict[int, Tensor]:
    """Attention weights (B, h, N, N) by layer (from 0), in eval mode and without gradients.

    A row is a query, a column a key; a row sums to 1.

    Raises:
        ValueError: The model has no attention, or no such layer.
    """
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"family {model.spec.family!r} {model.no_maps}")
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return model.attention_weights(images, layers)
    finally:
        model.train(was_training)
