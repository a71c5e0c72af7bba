"""Topic ``attention``: one layer of the model, step by step.

Axes: N tokens, M queries, D embed_dim, h num_heads, d = D / h.
"""

from typing import Any

import torch
from torch import Tensor

from vitcli.core.ops.backend import attention_scores, merge_heads
from vitcli.runner.explain.drawings import heat
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Layer, Subject

NUM_CROSS = 5
"""Number of queries of the example of cross-attention."""


@torch.no_grad()
def steps(layer: Layer) -> dict[str, Tensor]:
    """Return each step of a layer's attention by its name, from the input to the output."""
    rule: Any = layer.attention.attend
    scaled = attention_scores(layer.query, layer.key, rule.scale())
    mixed = layer.weights @ layer.value
    bias = layer.attention.position.bias()
    biased = {} if bias is None else {"scaled scores with the bias of positions": scaled + bias}
    return {
        "tokens X": layer.tokens,
        "queries Q: what a token seeks": layer.query,
        "keys K: the label of a token": layer.key,
        "values V: what a token carries": layer.value,
        "scores Q K^T": attention_scores(layer.query, layer.key, 1.0),
        "scaled scores": scaled,
        **biased,
        "weights A: softmax of each row": layer.weights,
        "weighted sums A V": mixed,
        "heads side by side": merge_heads(mixed),
        "output, after W_O": layer.output,
    }


@torch.no_grad()
def cross_attention(layer: Layer, count: int = NUM_CROSS) -> tuple[Tensor, Tensor]:
    """Return weights (1, h, M, N) and output (1, M, D) of the first M tokens as the only queries.

    Queries may come from another sequence than keys and values. Here they are tokens of the same
    picture, so the output must equal the first rows of self-attention.
    """
    attention, bias = layer.attention, layer.attention.position.bias()
    bias = None if bias is None else bias[:, :, :count]
    weights = attention.attend.weights(layer.query[:, :, :count], layer.key, bias)
    return weights, attention.proj(merge_heads(weights @ layer.value))


def explain(subject: Subject) -> Shown:
    layer = subject.layers[-1]
    crossed, output = cross_attention(layer)
    parts = {
        name: {
            "shape": list(values.shape),
            "smallest": values.min().item(),
            "largest": values.max().item(),
            "deviation": values.std().item(),
        }
        for name, values in steps(layer).items()
    }
    kept = layer.output.shape == layer.tokens.shape
    return Shown(
        numbers={
            "layer": len(subject.layers),
            "steps": parts,
            "row_sum_error": (layer.weights.sum(-1) - 1).abs().max().item(),
            "smallest_weight": layer.weights.min().item(),
            "cross_weights": list(crossed.shape),
            "cross_output": list(output.shape),
            "cross_error": (output - layer.output[:, : output.shape[1]]).abs().max().item(),
        },
        words={
            "output": layer.output.shape,
            "kept": ", the shape of the input" if kept else "",
            "strongest": [head.max().item() for head in layer.weights[0]],
        },
        drawings=[heat(head) for head in layer.weights[0, :2]],
    )
