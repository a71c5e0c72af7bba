"""How far each layer attends, and whether untrained models attend as far.

Axes: n images, L layers, h heads.
"""

import math
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.figure_style import (
    BLUE,
    DASHES,
    INK,
    MUTED,
    PALETTE,
    add_grid,
    add_legend_beside,
)
from vitcli.runner.visualize.attention_numbers import (
    AttentionNumbers,
    measure_attention,
    measure_untrained,
)
from vitcli.runner.visualize.claims import judge_claims, summarize_comparison
from vitcli.runner.visualize.figure import MARKS, RunFigure, note_of, source_of
from vitcli.runner.visualize.statistics import mean_and_error

MAX_HEADS = 20
"""Largest number of heads in a legend."""


def distance_figure(tested: TrainedRun) -> RunFigure:
    if tested.attention_model.grid_size == (1, 1):
        raise NoFigureError("the picture is one patch, so attention has no distance")
    model = tested.attention_model
    numbers = measure_attention(model, tested.batches(tested.sample))
    untrained = measure_untrained(tested)
    claims = judge_claims(numbers, untrained)
    return RunFigure(
        draw_axes=partial(_draw_distance, numbers),
        title="How far attention reaches",
        summary="Left: mean distance between a patch and the patches it attends to. Right: number"
        " of tokens it attends to, which is the exponential of the entropy. A bar is the standard"
        f" deviation over images. A patch is {model.spec.patch_size} pixels wide."
        f" {summarize_comparison(claims, untrained)}".rstrip(),
        note=note_of(tested),
        source=source_of(tested, len(numbers.distance)),
        numbers=distance_document(numbers)
        | {
            "untrained_seeds": untrained.seeds,
            "untrained_num_images": untrained.num_images,
            "claims": [asdict(claim) for claim in claims],
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
    add_legend_beside(right)
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
            color=PALETTE[head % len(PALETTE)] if are_named else BLUE,
            elinewidth=0.9,
            label=f"head {head + 1}" if are_named else "a head" if head == 0 else None,
        )
    axes.plot(
        range(1, layers + 1),
        mean.mean(1),
        color=INK,
        linewidth=1.2,
        marker="_" if layers == 1 else None,
        markersize=14,
        zorder=1,
        label="mean of the heads",
    )
    style: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": DASHES[1]}
    axes.axhline(uniform, label="uniform attention", **style)
    highest = max(uniform, (mean + spread).max().item())
    axes.set(xlim=(0.5, layers + 0.5), ylim=(0, 1.08 * highest), xlabel="layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    add_grid(axes, "y")
