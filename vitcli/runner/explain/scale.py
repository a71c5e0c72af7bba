"""Topic ``scale``: why scores are divided by sqrt(d). Axes: N tokens, d width of a head."""

import math
from typing import Any

import torch

from vitcli.core.inspect.random_tensors import score_variance
from vitcli.core.inspect.statistics import attention_entropy
from vitcli.core.nn.attention import HeadDimScale
from vitcli.core.ops.backend import attention_scores
from vitcli.core.spec.slots import ATTN_SCALES
from vitcli.runner.explain.drawings import bars
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Layer, Subject
from vitcli.runner.text import quantity

WIDTHS = (16, 64, 256)


def random_variances(width: int) -> list[dict[str, float]]:
    found = [(each, *score_variance(each)) for each in sorted({*WIDTHS, width})]
    return [{"width": each, "before": before, "after": after} for each, before, after in found]


@torch.no_grad()
def layer_scores(layer: Layer) -> dict[str, float]:
    """Return variances of queries, keys and scores of a layer, and entropies of its softmax.

    ``unscaled_entropy`` is the mean entropy in nats of the softmax of scores that are not scaled.
    """
    rule: Any = layer.attention.attend
    scale = rule.scale()
    query, key = layer.query.var().item(), layer.key.var().item()
    unscaled = rule.weights(layer.query / scale, layer.key, layer.attention.position.bias())
    return {
        "query": query,
        "key": key,
        "predicted": layer.query.shape[-1] * query * key,
        "before": attention_scores(layer.query, layer.key, 1.0).var().item(),
        "after": attention_scores(layer.query, layer.key, scale).var().item(),
        "unscaled_entropy": attention_entropy(unscaled).mean().item(),
        "entropy": attention_entropy(layer.weights).mean().item(),
    }


def explain(subject: Subject) -> Shown:
    sizes, scale = subject.sizes(), subject.model.spec.attn_scale
    own, uniform = sizes["head_width"], math.log(sizes["tokens"])
    drawn = random_variances(own)
    layers = [layer_scores(layer) for layer in subject.layers]
    is_usual = type(subject.layers[0].attention.attend.scale) is HeadDimScale
    other = f"This model uses attn_scale {scale!r}: {ATTN_SCALES[scale].about}."
    rows = [
        (f"layer {i} {name}", row[key], f"{row[key]:.2f}")
        for i, row in enumerate(layers, 1)
        for name, key in (("without", "unscaled_entropy"), ("scaled", "entropy"))
    ]
    return Shown(
        numbers={
            "random": drawn,
            "layers": layers,
            "uniform_entropy": uniform,
            "wide": score_variance(64, variance=4)[1],
        },
        words={
            "num_heads": quantity(sizes["heads"], "head"),
            "factor": (sizes["width"] / own) ** 0.5,
            "how": f"This model divides by √{own}." if is_usual else other,
            "sharper": sum(row["unscaled_entropy"] < row["entropy"] for row in layers),
            "widths": [
                row | {"own": " (this model)" if row["width"] == own else ""} for row in drawn
            ],
        },
        drawings=[bars(rows, limit=uniform)],
    )
