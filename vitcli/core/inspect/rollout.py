"""Attention rollout through the layers. Axes: B batch, h num_heads, N tokens (prefix first)."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vitcli.core.models.timm_model import MappedModel


def rollout(weights: Iterable[Tensor], *, residual: bool = True) -> Tensor:
    """Return the share of each input token in each output token: (B, N, N), rows sum to 1.

    A residual connection passes the input of a layer on, so the matrix of the layer is
    A = (mean over heads + I) / 2. Without a residual connection, A is the mean over heads. The
    matrices of all layers are multiplied.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928

    Args:
        weights: (B, h, N, N) of every layer, in order.
        residual: False for a model without residual connections.
    """
    products = list(rollouts(weights, residual=residual))
    if not products:
        raise ValueError("a rollout needs the weights of at least one layer")
    return products[-1]


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
    map @ R. Rows do not sum to 1. Chefer et al. 2021, https://arxiv.org/abs/2103.15679, equations 5
    and 6.

    Args:
        model: In eval mode.
        images: (B, C, H, W), normalised.
        classes: (B,) indices. Default: the likeliest class of each image.
    """
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
