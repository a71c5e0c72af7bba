"""How far each layer attends, and whether untrained models attend as far.

Axes: n images, L layers, h heads.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.plugins.distance.attention_numbers import (
    AttentionNumbers,
    measure_attention,
    measure_untrained,
)
from vitcli.plugins.distance.claims import (
    LIMITS,
    describe_untrained,
    judge_claims,
    plus_minus,
)
from vitcli.runner import figure_style as style
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.report.tables import PLUS_MINUS, Table, make_table
from vitcli.runner.text import percent, quantity
from vitcli.runner.visualize.figure import (
    MARKS,
    FigureRow,
    RunFigure,
    mean_and_error,
    note_of,
    source_of,
)

Numbers = Mapping[str, Any]
MAX_HEADS = 20
"""Largest number of heads in a legend."""


def distance_figure(tested: TrainedRun) -> RunFigure:
    if tested.attention_model.grid_size == (1, 1):
        raise NoFigureError("the picture is one patch, so attention has no distance")
    model = tested.attention_model
    numbers = measure_attention(model, tested.batches(tested.sample))
    untrained = measure_untrained(tested)
    return RunFigure(
        draw_axes=partial(_draw_distance, numbers),
        title="How far attention reaches",
        summary="Left: mean distance between a patch and the patches it attends to. Right: number"
        " of tokens it attends to, which is the exponential of the entropy. A bar is the standard"
        f" deviation over images. A patch is {model.spec.patch_size} pixels wide.",
        note=note_of(tested),
        source=source_of(tested, len(numbers.distance)),
        numbers=distance_document(numbers)
        | {
            "untrained_seeds": untrained.seeds,
            "untrained_num_images": untrained.num_images,
            "claims": [asdict(claim) for claim in judge_claims(numbers, untrained)],
        },
    )


def distance_document(numbers: AttentionNumbers) -> dict[str, object]:
    """Return means over images and heads by layer, with spreads and intervals over images."""
    rows = []
    for layer in range(numbers.distance.shape[1]):
        far, entropy = (x[:, layer].double().mean(1) for x in (numbers.distance, numbers.entropy))
        mean, error = mean_and_error(far)
        by_head = numbers.distance[:, layer].double().mean(0)
        similarity = numbers.similarity[layer].item()
        rows.append(
            {
                "layer": layer + 1,
                "distance": mean,
                "distance_sd": far.std().item() if len(far) > 1 else None,
                "distance_ci95": error,
                "of_uniform": mean / numbers.uniform,
                "nearest_head": by_head.min().item(),
                "farthest_head": by_head.max().item(),
                "near_share": numbers.near[:, layer].double().mean().item(),
                "by_head": by_head.tolist(),
                "entropy": entropy.mean().item(),
                "head_similarity": None if math.isnan(similarity) else similarity,
            }
        )
    return {
        "n": len(numbers.distance),
        "uniform_distance": numbers.uniform,
        "uniform_near_share": numbers.uniform_near,
        "num_patches": numbers.num_patches,
        "layers": rows,
    }


def _draw_distance(numbers: AttentionNumbers) -> Figure:
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = numbers.entropy.double().exp()
    _draw_by_head(left, numbers.distance.double(), numbers.uniform)
    left.set_ylabel("mean attention distance, pixels")
    _draw_by_head(right, tokens, numbers.num_tokens)
    right.set_ylabel("tokens attended to (exp of the entropy)")
    style.add_legend_beside(right)
    return figure


def _draw_by_head(axes: Axes, values: torch.Tensor, uniform: float) -> None:
    """Draw values (n, L, h) as marks with bars, one column a layer, and the uniform value."""
    _, layers, num_heads = values.shape
    mean = values.mean(0)
    spread = values.std(0) if len(values) > 1 else torch.zeros_like(mean)
    are_named = num_heads <= MAX_HEADS
    for head in range(num_heads):
        places = np.arange(1, layers + 1) + (head - (num_heads - 1) / 2) * 0.5 / num_heads
        axes.errorbar(
            places,
            mean[:, head],
            yerr=spread[:, head] if len(values) > 1 else None,
            linestyle="",
            marker=MARKS[head % len(MARKS)] if are_named else "o",
            markersize=4,
            color=style.PALETTE[head % len(style.PALETTE)] if are_named else style.BLUE,
            elinewidth=0.9,
            label=f"head {head + 1}" if are_named else "a head" if head == 0 else None,
        )
    axes.plot(
        range(1, layers + 1),
        mean.mean(1),
        color=style.INK,
        linewidth=1.2,
        marker="_" if layers == 1 else None,
        markersize=14,
        zorder=1,
        label="mean of the heads",
    )
    dashed: dict[str, Any] = {"color": style.MUTED, "linewidth": 0.9, "linestyle": style.DASHES[1]}
    axes.axhline(uniform, label="uniform attention", **dashed)
    highest = max(uniform, (mean + spread).max().item())
    axes.set(xlim=(0.5, layers + 0.5), ylim=(0, 1.08 * highest), xlabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    style.add_grid(axes, "y")


def distance_tables(found: Numbers) -> list[Table]:
    return [_distances(found), _claims(found)]


def _distances(found: Numbers) -> Table:
    header = ["layer", "distance, pixels", "of uniform attention", "nearest to farthest head"]
    header += ["within 3x3 patches", "entropy, nats", "head similarity"]
    rows = [
        [
            str(row["layer"]),
            with_error((row["distance"], row["distance_sd"]), ".2f"),
            f"{row['of_uniform']:.2f}",
            f"{row['nearest_head']:.2f} to {row['farthest_head']:.2f}",
            percent(row["near_share"], 0),
            f"{row['entropy']:.2f}",
            "" if row["head_similarity"] is None else f"{row['head_similarity']:.2f}",
        ]
        for row in found["layers"]
    ]
    note = (
        f"n = {found['n']:,} test images; \u00b1 is the standard deviation over images. Uniform"
        f" attention has a distance of {found['uniform_distance']:.2f} pixels and"
        f" {percent(found['uniform_near_share'], 0)} of its weight within 3x3 patches. Head"
        " similarity is the mean cosine between the maps of two heads."
    )
    return make_table(header, rows, range(len(header)), notes=(note,))


def _claims(found: Numbers) -> Table:
    rows = []
    for claim in found["claims"]:
        verdicts = filter(None, [claim["verdict"], claim.get("against_untrained")])
        untrained = describe_untrained(claim)
        rows.append([claim["claim"], "; ".join(verdicts), claim["measured"], untrained])
    notes = [LIMITS]
    if "untrained_seeds" in found:
        seeds = quantity(len(found["untrained_seeds"]), "random seed")
        images = quantity(found["untrained_num_images"], "test image")
        notes.append(
            "Untrained models: the 95 % prediction interval from the initial weights of"
            f" {seeds}, on {images}. If the 95 % interval of the measured number reaches into it,"
            " this model is not distinguishable from an untrained one."
        )
    header = ["claim", "verdict", "measured on this model", "untrained models"]
    return make_table(header, rows, notes=tuple(notes))


def with_error(pair: tuple[float, float | None], form: str) -> str:
    return plus_minus(*pair, form).replace("+-", PLUS_MINUS)


ROW = FigureRow(make=distance_figure, tables=distance_tables)
