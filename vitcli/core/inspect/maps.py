"""Maps of a model's attention by several methods. A map has one number per patch.

Axes: B batch, K classes, h num_heads, N tokens (prefix first), gh gw patch grid.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitcli.core.inspect.grad_cam import grad_cam
from vitcli.core.models.image_model import ImageModel, MappedModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import NoMapError
from vitcli.core.torch_use import evaluating


def rollout(weights: Iterable[Tensor], *, residual: bool = True) -> Tensor:
    """Return the share of each input token in each output token: (B, N, N), rows sum to 1.

    A residual connection passes the input of a layer on, so the matrix of the layer is
    A = (mean over heads + I) / 2. Without a residual connection, A is the mean over heads. The
    matrices of all layers are multiplied.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928
    """
    return [*rollouts(weights, residual=residual)][-1]


def rollouts(weights: Iterable[Tensor], *, residual: bool = True) -> Iterator[Tensor]:
    """Yield the ``rollout`` up to each layer, from the first: (B, N, N) each."""
    through: Tensor | None = None
    for layer in weights:
        mixed = layer.mean(1)
        if residual:
            mixed = (mixed + torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)) / 2
        through = mixed if through is None else mixed @ through
        yield through


def grad_rollout(
    model: MappedModel, images: Tensor, classes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the relevance of each input token for a class, (B, N, N), and the logits (B, K).

    A is the attention matrix of a layer, and G is the gradient of the class's logit with respect to
    A. The layer's map is the mean over heads of max(G * A, 0). The relevance R starts as the
    identity, and each layer adds map @ R. A layer without a residual connection replaces R by
    map @ R. Rows do not sum to 1. By default, the class of an image is the likeliest one. Chefer et
    al. 2021, https://arxiv.org/abs/2103.15679, equations 5 and 6.
    """
    require_all_stated(model, images)
    with torch.enable_grad():
        # Autograd needs a graph up to the first layer's weights, even if no parameter is trainable.
        logits, by_layer = model.forward_with_weights(images.detach().requires_grad_())
        chosen = logits.argmax(1) if classes is None else classes
        # The images of a batch are independent, so the gradient of the sum is that of each logit.
        target = logits.gather(1, chosen[:, None]).sum()
        layers = list(by_layer.values())
        gradients = torch.autograd.grad(target, layers)
    count = layers[0].shape[-1]
    relevance = torch.eye(count, dtype=logits.dtype, device=logits.device).repeat(len(images), 1, 1)
    has_residual = model.spec.has_residual
    for weights, gradient in zip(layers, gradients, strict=True):
        step = (weights.detach() * gradient).clamp(min=0).mean(1) @ relevance
        relevance = relevance + step if has_residual else step
    return relevance, logits.detach()


@dataclass(frozen=True, kw_only=True)
class MapRequest:
    """A request for maps: the model, the images, and the layers, heads, patch or class to map."""

    model: MappedModel
    images: Tensor
    """(B, C, H, W), normalised."""
    layers: tuple[int, ...]
    """Counted from 0. Grad-CAM also accepts -1, which means the embedded patches."""
    heads: tuple[int, ...] | None = None
    """Counted from 0; None means all heads."""
    query: tuple[int, int] | None = None
    """(row, column) of the patch whose attention is mapped. None means the tokens that the
    classifier reads: CLS, or the pooled patches."""
    classes: Tensor | None = None
    """(B,) the class to explain for each image; None means the most likely class."""


@torch.no_grad()
def cls_attention(request: MapRequest) -> Tensor:
    """Return the attention of CLS or of a patch, mean of layers and heads: (B, gh, gw)."""
    if request.model.cls_token is None and request.query is None:
        raise ValueError(
            f"the model has no CLS token (it pools by {request.model.pool_name!r}); use the method"
            " grad-rollout, or name a patch with --query"
        )
    return head_maps(request).mean((1, 2))


@torch.no_grad()
def head_maps(request: MapRequest) -> Tensor:
    """Return the attention of the classifier's input or of the queried patch: (B, L, h, gh, gw)."""
    weights = request.model.attention_weights(request.images, request.layers)
    shares = query_shares(request)  # (B, N)
    maps = torch.stack([_mean_row(weights[layer], shares) for layer in request.layers], dim=1)
    if request.heads is not None:
        maps = maps[:, :, list(request.heads)]
    return on_grid(request.model, maps)


@torch.no_grad()
def raw_weights(request: MapRequest) -> Tensor:
    """Return the attention matrices, prefix tokens included: (B, L, h, N, N), rows sum to 1."""
    by_layer = request.model.attention_weights(request.images, request.layers)
    weights = torch.stack([by_layer[layer] for layer in request.layers], dim=1)
    return weights if request.heads is None else weights[:, :, list(request.heads)]


@torch.no_grad()
def rollout_map(request: MapRequest) -> Tensor:
    """Return the attention rollout from the input to the last requested layer: (B, gh, gw)."""
    require_all_stated(request.model, request.images)
    weights = request.model.attention_weights(request.images, range(max(request.layers) + 1))
    through = rollout(weights.values(), residual=request.model.spec.has_residual)
    return on_grid(request.model, _mean_row(through, query_shares(request)))


def grad_rollout_map(request: MapRequest) -> Tensor:
    """Return the relevance of each patch for the class, by gradient rollout: (B, gh, gw).

    The rollout starts from the identity matrix, which is subtracted here. Otherwise the map of a
    model with pooled patches would also contain each patch's weight in the pooling. The subtraction
    does not change a map of CLS.
    """
    relevance, _ = grad_rollout(request.model, request.images, request.classes)
    with torch.no_grad():
        shares = query_shares(request)
        row = _mean_row(relevance, shares)
        if request.model.spec.has_residual:
            row = row - shares
        return on_grid(request.model, row)


def grad_cam_map(request: MapRequest) -> Tensor:
    """Return Grad-CAM on the output of the last requested layer: (B, gh, gw)."""
    return grad_cam(request.model, request.images, request.classes, max(request.layers) + 1)


def states_all(model: MappedModel, images: Tensor) -> bool:
    """Return whether attention computes what its weights say; an own rule may do more."""
    return not isinstance(model, VisionTransformer) or model.states_all(images)


def require_all_stated(model: MappedModel, images: Tensor) -> None:
    """Refuse a map through several layers of a model whose attention does more than its weights."""
    if not states_all(model, images):
        attention = getattr(model.spec, "attention", "")
        raise NoMapError(
            f"attention {attention!r} computes more than its weights say, so a map through several"
            " layers would be that of another network; try --method gradcam"
        )


METHODS: dict[str, Callable[[MapRequest], Tensor]] = {
    "cls": cls_attention,
    "rollout": rollout_map,
    "grad-rollout": grad_rollout_map,
    "gradcam": grad_cam_map,
}
"""Methods that return one map per image."""
METHODS_BY_HEAD: dict[str, Callable[[MapRequest], Tensor]] = {"head": head_maps, "raw": raw_weights}
"""Methods that return one map or one matrix for each layer and head."""


def default_method(model: MappedModel, *, by_class: bool = True) -> str:
    """Return the method of a map that is asked for without a method.

    The attention of CLS reads what the classifier reads. A model without CLS has no such row, and
    two checks chose its method (docs/results/attention-maps.md): a rollout keeps its order of
    patches when the upper half of the layers loses its trained weights, so it does not show what
    these layers learned. Of the maps that pass this check, the gradient rollout finds the patches
    that the prediction needs best.

    Without ``by_class``, a map of one class is not possible, and ``rollout`` remains: it is the
    only map of a model without CLS that needs neither a class nor a patch.
    """
    if model.no_maps:
        return "gradcam"
    if model.cls_token is not None:
        return "cls"
    return "grad-rollout" if by_class else "rollout"


def query_shares(request: MapRequest) -> Tensor:
    """Return the weight of each token's attention in the map: (B, N), rows sum to 1."""
    model = request.model
    if request.query is None:
        return model.pool_weights(request.images)
    (height, width), (row, column) = model.grid_size, request.query
    count = model.num_prefix_tokens + height * width
    place = model.num_prefix_tokens + row * width + column
    return torch.eye(count)[place].to(request.images).expand(len(request.images), -1)


def on_grid(model: MappedModel, tokens: Tensor) -> Tensor:
    """Arrange token values on the patch grid, without the prefix: (..., N) -> (..., gh, gw)."""
    return tokens[..., model.num_prefix_tokens :].unflatten(-1, model.grid_size)


def _mean_row(weights: Tensor, shares: Tensor) -> Tensor:
    """Return the mean row of (B, ..., N, N), weighted by shares (B, N): (B, ..., N)."""
    shares = shares.view(len(shares), *[1] * (weights.ndim - 3), 1, -1)
    return (shares @ weights).squeeze(-2)


def check_layers(model: MappedModel, layers: Sequence[int]) -> tuple[int, ...]:
    """Return layer numbers as indices from 0. Layer 1 has index 0; layer -1 is the last layer."""
    depth = len(model.blocks)
    for layer in layers:
        if layer == 0 or abs(layer) > depth:
            raise ValueError(
                f"layer {layer} is out of range: the model has layers 1 to {depth} (-1 is the last)"
            )
    return tuple(layer - 1 if layer > 0 else depth + layer for layer in layers)


def attention_entropy(weights: Tensor) -> Tensor:
    """Return the mean entropy of the rows in nats, (B, h): ln N for uniform attention."""
    return -torch.xlogy(weights, weights).sum(-1).mean(-1)


@torch.no_grad()
def attention_maps(
    model: nn.Module, images: Tensor, layers: Sequence[int] | None = None
) -> dict[int, Tensor]:
    """Return the attention weights (B, h, N, N) by layer index from 0, computed in eval mode.

    A row is a query, a column is a key. Each row sums to 1. The N tokens are CLS (if the model has
    it), then registers, then patches row by row. No gradients are computed.

    Args:
        model: A model of the family ``vit``, on the device of the images.
        images: Normalised images (B, C, H, W).
        layers: Indices of layers from 0, or from -1 for the last; all layers if None.

    Raises:
        ValueError: The model has no attention matrices, a layer does not exist, or the images have
            another shape or are not normalised.
    """
    if not isinstance(model, ImageModel):
        raise ValueError(f"attention_maps: {type(model).__name__} is no model of vitcli")
    if model.no_maps or not isinstance(model, MappedModel):
        raise ValueError(f"family {model.spec.family!r} {model.no_maps}")
    with evaluating(model):
        return model.attention_weights(images, layers)
