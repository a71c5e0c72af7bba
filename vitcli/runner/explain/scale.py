"""Topic ``scale``: why scores are divided by sqrt(d). Axes: N tokens, d width of a head."""

import math
from typing import Any

import torch

from vitcli.core.inspect.statistics import attention_entropy
from vitcli.core.nn.attention_rule import HeadDimScale
from vitcli.core.ops.attention import attention_scores
from vitcli.core.spec.slots import ATTN_SCALES
from vitcli.runner.explain.drawings import bars
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable
from vitcli.runner.explain.random_tensors import score_variance
from vitcli.runner.explain.subject import Layer, Subject
from vitcli.runner.text import quantity

WIDTHS = (16, 64, 256)


def random_variances(width: int) -> list[dict[str, float]]:
    """Return the variance of scores of unit normal queries and keys, for each width of a head."""
    found = []
    for each in sorted({*WIDTHS, width}):
        before, after = score_variance(each)
        found.append({"width": each, "before": before, "after": after})
    return found


@torch.no_grad()
def layer_scores(layer: Layer) -> dict[str, float]:
    """Return variances of queries, keys and scores of a layer, and entropies of its softmax.

    ``unscaled_entropy`` is the mean entropy in nats of the softmax of scores that are not scaled.
    """
    rule: Any = layer.attention.attend
    bias = layer.attention.position.bias()
    width = layer.query.shape[-1]
    scale = rule.scale()
    variances = layer.query.var().item(), layer.key.var().item()
    unscaled = rule.weights(layer.query / scale, layer.key, bias)
    return {
        "query": variances[0],
        "key": variances[1],
        "predicted": width * variances[0] * variances[1],
        "before": attention_scores(layer.query, layer.key, 1.0).var().item(),
        "after": attention_scores(layer.query, layer.key, scale).var().item(),
        "unscaled_entropy": attention_entropy(unscaled).mean().item(),
        "entropy": attention_entropy(layer.weights).mean().item(),
    }


def explain(subject: Subject) -> Lesson:
    drawn = random_variances(subject.head_width)
    layers = [layer_scores(layer) for layer in subject.layers]
    uniform = math.log(subject.num_tokens)
    _, wide = score_variance(64, variance=4)
    numbers = {"random": drawn, "layers": layers, "uniform_entropy": uniform, "wide": wide}
    return Lesson(
        title="Scale: why the scores are divided by √d",
        idea=(
            "A score is a sum of d products, so its variance grows with d. Large scores drive the"
            " softmax towards one key: the others get almost no weight and almost no gradient. The"
            " division by √d keeps the variance at the same level for every width."
        ),
        formula="Var(q · k) = d Var(q) Var(k)\nVar(q · k / √d) = Var(q) Var(k)",
        tables=_tables(subject, numbers),
        findings=_findings(subject, numbers),
        tries=[
            ("vitcli train quickstart -s model.attn_scale=learned", "a learned scale"),
            ("vitcli train quickstart -s model.attn_scale=embed_dim", "division by √D"),
        ],
        numbers=numbers,
        drawings=_drawings(layers, uniform),
    )


def _findings(subject: Subject, numbers: dict[str, Any]) -> list[str]:
    sharper = sum(row["unscaled_entropy"] < row["entropy"] for row in numbers["layers"])
    own = subject.layers[0].attention.attend.scale
    name = subject.model.spec.attn_scale
    how = (
        f"This model divides by √{subject.head_width}."
        if type(own) is HeadDimScale
        else f"This model uses attn_scale {name!r}: {ATTN_SCALES[name].about}."
    )
    return [
        "The formula holds for independent numbers with mean 0. Trained queries and keys are not"
        " independent, so the measured variance differs from d Var(q) Var(k).",
        f"Queries and keys of variance 4 give scaled scores of variance {numbers['wide']:.1f}: the"
        " scaled variance is the product of both variances, and equals each of them only if both"
        " are 1.",
        f"The training notes divide by √D instead. For this model with"
        f" {quantity(subject.num_heads, 'head')}, √{subject.width} / √{subject.head_width} ="
        f" {(subject.width / subject.head_width) ** 0.5:.2f}: the scores would be smaller by this"
        " factor. With one head, both are the same.",
        f"{how} Without scaling, the softmax is sharper in {sharper} of {len(numbers['layers'])}"
        f" layers. Uniform attention to {subject.num_tokens} tokens has an entropy of"
        f" ln {subject.num_tokens} = {numbers['uniform_entropy']:.2f} nats, attention to one token"
        " has 0.",
    ]


def _tables(subject: Subject, numbers: dict[str, Any]) -> list[LiveTable]:
    own = subject.head_width
    return [
        LiveTable(
            caption="Variance of scores of random queries and keys with variance 1 (n = 20,000).",
            header=("width d", "before", "divided by √d"),
            rows=tuple(
                (
                    f"{row['width']}{' (this model)' if row['width'] == own else ''}",
                    f"{row['before']:.2f}",
                    f"{row['after']:.3f}",
                )
                for row in numbers["random"]
            ),
        ),
        LiveTable(
            caption="The model's own queries and keys on the picture, all heads; entropy in nats.",
            header=(
                *("layer", "Var(q)", "Var(k)", "d Var(q) Var(k)", "Var(q·k)", "scaled"),
                *("entropy unscaled", "entropy scaled"),
            ),
            rows=tuple(
                (str(i), *(f"{value:.2f}" for value in row.values()))
                for i, row in enumerate(numbers["layers"], 1)
            ),
        ),
    ]


def _drawings(layers: list[dict[str, float]], uniform: float) -> list[Drawing]:
    rows = [
        (f"layer {i} {name}", row[key], f"{row[key]:.2f}")
        for i, row in enumerate(layers, 1)
        for name, key in (("without", "unscaled_entropy"), ("scaled", "entropy"))
    ]
    label = f"Mean entropy of attention in nats; a full bar is uniform attention, {uniform:.2f}."
    return [Drawing(html=bars(rows, label, limit=uniform), caption=label)]
