"""Attention through all layers at once. Axes: B batch, h num_heads, N tokens (prefix first)."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from vitcli.core.models.vit import VisionTransformer


def rollout(weights: Iterable[Tensor], *, residual: bool = True) -> Tensor:
    """How much each token of the input enters each token of the output: (B, N, N), rows sum to 1.

    The heads of a layer are averaged; where it has a residual connection, half of what leaves it is
    its input: A = (mean over heads + I) / 2. The layers, first to last, are multiplied up.

    Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928

    Args:
        weights: (B, h, N, N) of every layer, in order.
        residual: False for a model without residual connections, where nothing passes by.
    """
    found = list(rollouts(weights, residual=residual))
    if not found:
        raise ValueError("a rollout needs the weights of one layer at least")
    return found[-1]


def rollouts(weights: Iterable[Tensor], *, residual: bool = True) -> Iterator[Tensor]:
    """``rollout`` up to the first layer, the second, and so on: (B, N, N) each."""
    through: Tensor | None = None
    for layer in weights:
        mixed = layer.mean(1)
        if residual:
            mixed = (mixed + torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)) / 2
        through = mixed if through is None else mixed @ through
        yield through


def grad_rollout(
    model: VisionTransformer, images: Tensor, classes: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Relevance of each input token for a class, (B, N, N), and the logits (B, K).

    With A the weights of a layer and G the gradient of the class's logit by them, the layer's
    map is the mean over heads of max(G * A, 0), and R <- R + map @ R from the identity on. Rows do
    not sum to 1. Chefer et al. 2021, https://arxiv.org/abs/2103.15679, equations 5 and 6.
    Without a residual connection R <- map @ R: nothing passes by.

    Args:
        model: In eval mode.
        images: (B, C, H, W), normalised.
        classes: (B,) indices; the likeliest class of each image unless given.
    """
    with torch.enable_grad():
        # The first weights depend on parameters, so they are part of a graph in any case.
        logits, found = model.forward_with_weights(images.detach().requires_grad_())
        chosen = logits.argmax(1) if classes is None else classes
        target = logits.gather(1, chosen[:, None]).sum()  # images do not mix: one pass serves all
        layers = list(found.values())
        gradients = torch.autograd.grad(target, layers)
    count = layers[0].shape[-1]
    relevance = torch.eye(count, dtype=logits.dtype, device=logits.device).repeat(len(images), 1, 1)
    passes = model.spec.residual != "none"
    for weights, gradient in zip(layers, gradients, strict=True):
        step = (weights.detach() * gradient).clamp(min=0).mean(1) @ relevance
        relevance = relevance + step if passes else step
    return relevance, logits.detach()
