"""Figures of attention: of mistakes, by layer and head, its distance, and the maps' faithfulness.

Axes: L layers, h heads, gh gw patch grid, H W pixels, n images.
"""

from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.core.inspect.maps import MapRequest, grad_rollout_map, head_maps
from vitcli.runner.figure_style import (
    CMAP,
    DASHES,
    FAINT,
    INK,
    MUTED,
    PALETTE,
    bare,
    draw_map_grid,
)
from vitcli.runner.text import one_line
from vitcli.runner.visualize.attention_numbers import AttentionNumbers, measure_attention
from vitcli.runner.visualize.claims import judge_claims, summarize_comparison
from vitcli.runner.visualize.faithfulness_numbers import (
    BASELINES,
    Faithfulness,
    measure_faithfulness,
)
from vitcli.runner.visualize.figure import MARKS, RunFigure, make_caption, three_layers
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet
from vitcli.runner.visualize.statistics import mean_and_error
from vitcli.runner.visualize.untrained import measure_untrained

MISTAKES = 8
CHOSEN = 4


def mistakes_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the most confident wrong predictions and the maps that explain them."""
    model, labels = tested.attention_model, tested.data.test.labels
    shares, predicted = tested.logits.softmax(-1).max(-1)
    wrong = (predicted != labels).nonzero().flatten()
    if not len(wrong):
        raise NoFigureError("the model makes no mistake on the test images")
    worst = wrong[shares[wrong].argsort(descending=True, stable=True)][:MISTAKES]
    request = MapRequest(
        model=model,
        images=tested.batch(worst),
        layers=(len(model.blocks) - 1,),
        classes=predicted[worst].to(tested.predictor.device),
    )
    maps = grad_rollout_map(request).cpu().numpy()
    names = [one_line(name, 12) for name in tested.predictor.names]
    tiles = [
        (
            tested.picture(i),
            m,
            f"{names[predicted[i]]} {100 * shares[i]:.0f} %\nis {names[labels[i]]}",
        )
        for i, m in zip(worst.tolist(), maps, strict=True)
    ]
    return RunFigure(
        draw=partial(_draw_mistakes, tiles),
        title="Most confident mistakes",
        caption=make_caption(
            tested,
            f"The {len(tiles)} most confident of {len(wrong):,} wrong predictions. The map below a"
            " picture is the gradient rollout for the predicted class, on a scale of its own.",
            len(labels),
        ),
        numbers={
            "num_mistakes": len(wrong),
            "surest": [
                {
                    "index": i,
                    "said": tested.predictor.names[predicted[i]],
                    "probability": shares[i].item(),
                }
                for i in worst.tolist()
            ],
        },
    )


def _draw_mistakes(tiles: list[tuple[np.ndarray, np.ndarray, str]]) -> Figure:
    figure = Figure(figsize=(1.05 * len(tiles), 2.7), layout="constrained")
    grid = figure.subplots(2, len(tiles), squeeze=False)
    for (picture, values, text), (above, below) in zip(tiles, grid.T, strict=True):
        bare(above)
        above.imshow(picture)
        above.set_title(text, fontsize=7.5, loc="center")
        draw_map_over_grey_picture(below, picture, values)
    return figure


def draw_map_over_grey_picture(axes: Axes, picture: np.ndarray, values: np.ndarray) -> None:
    """Draw a map (gh, gw) over a picture (H, W, 3) in grey, on a scale from 0 to its maximum."""
    bare(axes)
    height, width = picture.shape[:2]
    grey = np.broadcast_to(picture.mean(-1, keepdims=True).astype(np.uint8), picture.shape)
    axes.imshow(grey)
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(values, cmap=CMAP, vmin=0, vmax=values.max() or 1, alpha=0.65, extent=edges)


def heads_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the classifier's attention by layer and head.

    The images are the first of their class, so that nobody selected them.
    """
    model = tested.attention_model
    layers = three_layers(len(model.blocks))
    index = torch.tensor(tested.first_of_each_class[:CHOSEN])
    request = MapRequest(model=model, images=tested.batch(index), layers=tuple(layers))
    maps = head_maps(request).cpu().numpy()  # (B, L, h, gh, gw)
    pictures = [tested.picture(i) for i in index.tolist()]
    who = "CLS attends" if model.cls_token is not None else "the pooled patches attend"
    rows = ", ".join(str(i + 1) for i in layers)
    return RunFigure(
        draw=partial(_draw_heads, pictures, maps, layers),
        title="Attention by layer and head",
        caption=make_caption(
            tested,
            f"What {who} to in layers {rows}: each head, and the mean of the heads. All maps share"
            " one square-root scale. The images are the first test image of each of the first"
            f" {len(pictures)} classes.",
            len(pictures),
        ),
    )


def _draw_heads(pictures: list[np.ndarray], maps: np.ndarray, layers: list[int]) -> Figure:
    num_heads = maps.shape[2]
    maps = np.concatenate([maps, maps.mean(2, keepdims=True)], axis=2)
    columns, rows = num_heads + 2, len(pictures) * len(layers)
    figure = Figure(figsize=(0.8 * columns + 1.1, 0.8 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, axes in enumerate(grid[:, 0]):
        picture, layer = divmod(row, len(layers))
        bare(axes)
        if layer == 0:
            axes.imshow(pictures[picture])
        else:
            axes.set_axis_off()
    image = draw_map_grid(
        grid[:, 1:],
        maps.reshape(rows, num_heads + 1, *maps.shape[3:]),
        row_names=[f"layer {layer + 1}" for layer in layers] * len(pictures),
        column_names=[*(f"head {head + 1}" for head in range(num_heads)), "mean"],
        cmap=CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max() or 1),
    )
    figure.colorbar(image, ax=grid, fraction=0.04, pad=0.02).set_label("share of attention")
    return figure


def distance_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the attention distance and entropy of every head, with their spread."""
    if tested.attention_model.grid_size == (1, 1):
        raise NoFigureError("the picture is one patch, so attention has no distance")
    model = tested.attention_model
    numbers = measure_attention(model, tested.batches(tested.sample))
    untrained = measure_untrained(tested)
    claims = judge_claims(numbers, untrained)
    return RunFigure(
        draw=partial(_draw_distance, numbers),
        title="How far attention reaches",
        caption=make_caption(
            tested,
            "Left: mean distance between a patch and the patches it attends to. Right: number of"
            " tokens it attends to, which is the exponential of the entropy. A mark is a head, and"
            " its bar is the standard deviation over images. The line is the mean of the heads. A"
            f" patch is {model.spec.patch_size} pixels wide."
            f" {summarize_comparison(claims, untrained)}".rstrip(),
            len(numbers.distance),
        ),
        numbers=distance_document(numbers)
        | {
            "untrained_seeds": untrained.seeds,
            "untrained_num_images": untrained.num_images,
            "claims": [asdict(claim) for claim in claims],
        },
    )


def distance_document(numbers: AttentionNumbers) -> dict[str, object]:
    """Return means over images and heads for each layer, with spreads and intervals over images.

    Layers are counted from 1.
    """
    rows = []
    for layer in range(numbers.distance.shape[1]):
        far, entropy = (x[:, layer].double().mean(1) for x in (numbers.distance, numbers.entropy))
        mean, error = mean_and_error(far)
        by_head = numbers.distance[:, layer].double().mean(0)
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
                "head_similarity": None
                if numbers.similarity[layer].isnan()
                else numbers.similarity[layer].item(),
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
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = numbers.entropy.double().exp()
    _draw_by_head(left, numbers.distance.double(), numbers.uniform)
    left.set_ylabel("mean attention distance, pixels")
    _draw_by_head(right, tokens, numbers.num_tokens)
    right.set_ylabel("tokens attended to (exp of the entropy)")
    return figure


def _draw_by_head(axes: Axes, values: torch.Tensor, uniform: float) -> None:
    """Draw values (n, L, h) as marks with bars, one column a layer, and the uniform value."""
    _, layers, num_heads = values.shape
    mean = values.mean(0)
    spread = values.std(0) if len(values) > 1 else torch.zeros_like(mean)
    for head in range(num_heads):
        places = np.arange(1, layers + 1) + (head - (num_heads - 1) / 2) * 0.5 / num_heads
        axes.errorbar(
            places,
            mean[:, head],
            yerr=spread[:, head],
            linestyle="",
            marker=MARKS[head % len(MARKS)],
            markersize=4,
            color=PALETTE[head % len(PALETTE)],
            elinewidth=0.9,
            label=f"head {head + 1}" if num_heads <= 8 else None,
        )
    axes.plot(range(1, layers + 1), mean.mean(1), color=INK, linewidth=1.2, zorder=1)
    axes.axhline(uniform, color=MUTED, linewidth=0.9, linestyle=DASHES[1])
    axes.annotate(
        "uniform attention",
        (0.02, uniform),
        xycoords=axes.get_yaxis_transform(),
        va="bottom",
        fontsize=7.5,
        color=MUTED,
    )
    axes.set_ylim(0, 1.08 * max(uniform, (mean + spread).max().item()))
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    if num_heads <= 8:
        axes.legend(frameon=False, fontsize=7.5, ncols=2, loc="lower right")


def faithfulness_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the deletion and insertion curves of each method and two baselines."""
    found = measure_faithfulness(tested)
    count = len(found.methods[0].gap)
    best = found.best
    return RunFigure(
        draw=partial(_draw_faithfulness, found),
        title="Faithfulness of the maps",
        caption=make_caption(
            tested,
            "Mean probability of the likeliest class. Left: the highest patches of each map are"
            " replaced by the mean colour; a fast fall is good. Right: they are put back; a fast"
            " rise is good. Grey lines: the baselines, a random map and a Gaussian in the middle."
            " Shaded: 95 % interval over images. The training had no pictures with grey patches."
            f" Best by insertion minus deletion: {best.method}.",
            count,
        ),
        numbers=faithfulness_document(found),
    )


def faithfulness_document(found: Faithfulness) -> dict[str, object]:
    """Return areas with half their 95 % intervals; ``against_*`` is a paired difference."""
    rows = []
    for each in found.methods:
        row: dict[str, object] = {
            "method": each.method,
            "deletion": each.deletion.mean(0).tolist(),
            "insertion": each.insertion.mean(0).tolist(),
        }
        for name in ("deletion_area", "insertion_area", "gap"):
            row[name], row[f"{name}_ci95"] = mean_and_error(getattr(each, name))
        for other in BASELINES:
            difference = each.gap - found.method(other).gap
            row[f"against_{other}"] = mean_and_error(difference)
        rows.append(row)
    best, *others = found.ranking
    return {
        "n": len(best.gap),
        "best": best.method,
        "best_against_next": mean_and_error(best.gap - others[0].gap),
        "next": others[0].method,
        "shares": list(found.shares),
        "methods": rows,
    }


def _draw_faithfulness(found: Faithfulness) -> Figure:
    figure = Figure(figsize=(7.2, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shares = 100 * np.array(found.shares)
    for axes, side, text in (
        (left, "deletion", "patches taken away, %"),
        (right, "insertion", "patches put back, %"),
    ):
        for i, each in enumerate(found.methods):
            values = getattr(each, side).double()
            is_base = each.method in BASELINES
            colour = MUTED if is_base else PALETTE[i % len(PALETTE)]
            dash = DASHES[1 + BASELINES.index(each.method)] if is_base else "-"
            mean = values.mean(0)
            halves = [mean_and_error(column)[1] or 0.0 for column in values.unbind(1)]
            error = torch.tensor(halves, dtype=mean.dtype)
            axes.fill_between(
                shares, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0
            )
            axes.plot(shares, mean, color=colour, linestyle=dash, linewidth=1.5, label=each.method)
        axes.set_xlabel(text)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_ylim(0, 1)
    left.set_ylabel("probability of the likeliest class")
    left.legend(frameon=False, fontsize=7.5)
    return figure
