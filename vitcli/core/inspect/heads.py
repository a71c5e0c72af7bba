"""Models without one head, or with one head that attends to all tokens alike.

Axes: B images, N tokens, L layers, h heads, K classes, d width of a head.
"""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import SelfAttention, Softmax


def attention_of(block: nn.Module) -> SelfAttention:
    return next(part for part in block.modules() if isinstance(part, SelfAttention))


def can_be_uniform(model: VisionTransformer) -> bool:
    """Return whether queries of zero make attention uniform: a softmax to all, without a bias."""
    attention = attention_of(model.blocks[0])
    rule = attention.attend
    has_bias = attention.position.biases_scores
    return type(rule) is Softmax and not (rule.masks_diagonal or has_bias)


CHANGES = {"removed": 2, "uniform": 0}
"""Change -> the part of a head's qkv that becomes zero. Without values, a head contributes nothing,
while the other heads and all biases stay; without queries, all its scores are equal."""


def _with_changed_head(block: nn.Module, head: int, change: str) -> nn.Module:
    changed = copy.deepcopy(block)
    attention = attention_of(changed)
    width = attention.qkv.out_features // 3
    size = width // attention.num_heads
    first = CHANGES[change] * width + head * size
    with torch.no_grad():
        attention.qkv.weight[first : first + size] = 0
        if attention.qkv.bias is not None:
            attention.qkv.bias[first : first + size] = 0
    return changed


@torch.no_grad()
def logits_by_layer(model: VisionTransformer, images: Tensor) -> Tensor:
    """Return the logits that the head gives for the tokens after each layer: (B, L + 1, K).

    Index 0 is for the embedded patches. This is the "logit lens" (nostalgebraist 2020, for
    language models): last norm, pooling and head are those of the whole model. They were trained
    for the last layer, so low accuracy of an early layer does not mean that it knows nothing.
    """
    tokens = model.embed(images)
    logits = [model.forward_head(model.last_norm(tokens))]
    for block in model.blocks:
        tokens = block(tokens)
        logits.append(model.forward_head(model.last_norm(tokens)))
    return torch.stack(logits, 1)


@torch.no_grad()
def logits_without_heads(
    model: VisionTransformer, images: Tensor
) -> Iterator[tuple[int, int, str, Tensor]]:
    """Yield (layer, head, change, logits (B, K)) for each head; layers and heads from 0.

    The change is ``removed`` or, where ``can_be_uniform``, ``uniform``. The layers before the
    changed one are computed once.
    """
    changes = CHANGES if can_be_uniform(model) else ("removed",)
    tokens = model.embed(images)
    for layer, block in enumerate(model.blocks):
        for head in range(attention_of(block).num_heads):
            for change in changes:
                after = _with_changed_head(block, head, change)(tokens)
                for later in model.blocks[layer + 1 :]:
                    after = later(after)
                yield layer, head, change, model.forward_head(model.last_norm(after))
        tokens = block(tokens)
