"""Topic ``attention``: one layer of the model, step by step.

Axes: N tokens, M queries, D embed_dim, h num_heads, d = D / h.
"""

from typing import Any

import torch
from torch import Tensor

from vitcli.core.ops.attention import attention_scores, merge_heads
from vitcli.runner.explain.drawings import heat
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error, shape
from vitcli.runner.explain.subject import Layer, Subject

NUM_CROSS = 5
"""Number of queries of the example of cross-attention."""


@torch.no_grad()
def steps(layer: Layer) -> dict[str, Tensor]:
    """Return each step of a layer's attention by its name, from the input to the output."""
    rule: Any = layer.attention.attend
    scores = attention_scores(layer.query, layer.key, 1.0)
    scaled = attention_scores(layer.query, layer.key, rule.scale())
    mixed = layer.weights @ layer.value
    bias = layer.attention.position.bias()
    biased = {} if bias is None else {"scaled scores with the bias of positions": scaled + bias}
    return {
        "tokens X": layer.tokens,
        "queries Q: what a token seeks": layer.query,
        "keys K: the label of a token": layer.key,
        "values V: what a token carries": layer.value,
        "scores Q K^T": scores,
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


TRIES = [
    ("vitcli attn-map photo.jpg --method raw", "the matrix A of each layer and head"),
    ("vitcli train quickstart -s model.num_heads=1 --dry-run", "one head of the same total width"),
    ("vitcli bench attention", "time and memory of each kind of attention"),
]
"""Commands that show more, and what each shows."""


def explain(subject: Subject) -> Lesson:
    layer, found = subject.layers[-1], steps(subject.layers[-1])
    crossed, output = cross_attention(layer)
    row_error = (layer.weights.sum(-1) - 1).abs().max().item()
    cross_error = (output - layer.output[:, : output.shape[1]]).abs().max().item()
    kept = layer.output.shape == layer.tokens.shape
    parts = {
        name: {
            "shape": list(values.shape),
            "smallest": values.min().item(),
            "largest": values.max().item(),
            "deviation": values.std().item(),
        }
        for name, values in found.items()
    }
    return Lesson(
        title="Attention: queries seek, keys label, values carry",
        idea=(
            "Each token makes three vectors. Its query says what it seeks, its key is the label by"
            " which others find it, and its value is what it passes on. A token compares its query"
            " with every key, turns the scores into weights that sum to 1, and takes the weighted"
            " sum of the values."
        ),
        formula=(
            "Attention(Q, K, V) = softmax(Q K^{T} / √d) V\nQ = X W_{Q},  K = X W_{K},  V = X W_{V}"
        ),
        tables=[_table(subject, parts)],
        findings=[
            f"Every row of A sums to 1; the largest difference is {error(row_error)} (fp32), and"
            f" the smallest weight is {layer.weights.min().item():.1e}.",
            f"The output has the shape {shape(layer.output.shape)}"
            f"{', the shape of the input' if kept else ''}, so layers can be stacked.",
            f"Cross-attention is the general form: queries may come from other tokens. Here"
            f" {output.shape[1]} queries read {subject.num_tokens} tokens: weights"
            f" {shape(crossed.shape)}, output {shape(output.shape)}. If the queries come"
            f" from the same tokens, the result equals self-attention (largest difference"
            f" {error(cross_error)}).",
        ],
        tries=TRIES,
        numbers={
            "layer": len(subject.layers),
            "steps": parts,
            "row_sum_error": row_error,
            "smallest_weight": layer.weights.min().item(),
            "cross_weights": list(crossed.shape),
            "cross_output": list(output.shape),
            "cross_error": cross_error,
        },
        drawings=[
            Drawing(
                html=heat(layer.weights[0, head], f"attention matrix of head {head + 1}"),
                caption=f"A of head {head + 1}: a row is a query, a column is a key. The"
                f" strongest colour is a weight of {layer.weights[0, head].max().item():.2f}.",
            )
            for head in range(min(2, subject.num_heads))
        ],
    )


def _table(subject: Subject, parts: dict[str, dict[str, Any]]) -> LiveTable:
    return LiveTable(
        caption=f"Layer {len(subject.layers)} of {len(subject.layers)} on the picture. Shapes are"
        " (pictures, tokens N, width D) or (pictures, heads, tokens N, width d of a head).",
        header=("step", "shape", "smallest", "largest", "std. deviation"),
        rows=tuple(
            (
                name,
                shape(step["shape"]),
                *(f"{step[key]:.3f}" for key in ("smallest", "largest", "deviation")),
            )
            for name, step in parts.items()
        ),
        num_texts=2,
    )
