"""Figures of attention: of mistakes, by layer and head, its distance, and the maps' faithfulness.

Axes: L layers, h heads, gh gw patch grid, H W pixels, n images.
"""

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from vitcli.core.inspect.maps import MapRequest, grad_rollout_map, head_maps
from vitcli.runner.figure_style import (
    BLUE,
    CMAP,
    DASHES,
    FAINT,
    INK,
    MUTED,
    PALETTE,
    add_colour_bar,
    add_legend_beside,
    add_share_bar,
    bare,
    draw_map_grid,
    wrap_text,
)
from vitcli.runner.text import one_line
from vitcli.runner.visualize.attention_numbers import AttentionNumbers, measure_attention
from vitcli.runner.visualize.claims import judge_claims, summarize_comparison
from vitcli.runner.visualize.faithfulness_numbers import (
    BASELINES,
    Faithfulness,
    measure_faithfulness,
)
from vitcli.runner.visualize.figure import MARKS, RunFigure, source_of, three_layers
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet
from vitcli.runner.visualize.statistics import mean_and_error
from vitcli.runner.visualize.untrained import measure_untrained

MISTAKES = 8
TILE = 1.25
"""Inches from one mistake to the next."""
CHOSEN = 4
MAX_HEADS = 20
"""Largest number of heads in a legend."""


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
    names = [one_line(name, 80) for name in tested.predictor.names]
    tiles = [
        _Mistake(
            picture=tested.picture(i),
            values=values,
            predicted=names[predicted[i]],
            probability=shares[i].item(),
            true=names[labels[i]],
        )
        for i, values in zip(worst.tolist(), maps, strict=True)
    ]
    return RunFigure(
        draw_axes=partial(_draw_mistakes, tiles),
        title="Most confident mistakes",
        summary=f"The {len(tiles)} most confident of {len(wrong):,} wrong predictions. Above: the"
        " predicted class with its probability, and the picture. Below: the gradient rollout for"
        " the predicted class, as a share of its largest value, and the true class.",
        source=source_of(tested, len(labels)),
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


@dataclass(frozen=True, kw_only=True)
class _Mistake:
    """Picture with a wrong prediction."""

    picture: np.ndarray
    values: np.ndarray
    """The map, (gh, gw)."""
    predicted: str
    probability: float
    true: str


def _draw_mistakes(tiles: list[_Mistake]) -> Figure:
    figure = Figure(figsize=(max(TILE * len(tiles) + 1.4, 4.5), 3.2), layout="compressed")
    grid = figure.subplots(2, len(tiles), squeeze=False)
    for tile, (above, below) in zip(tiles, grid.T, strict=True):
        bare(above)
        above.imshow(tile.picture)
        name = wrap_text(tile.predicted, TILE - 0.1, 7.5, 3)
        title = f"{name}\n{100 * tile.probability:.0f} %"
        above.set_title(title, fontsize=7.5, loc="center")
        image = draw_map_over_grey_picture(below, tile.picture, tile.values)
        below.set_xlabel(wrap_text(tile.true, TILE - 0.1, 7.5, 3), fontsize=7.5)
    for axes, name in zip(grid[:, 0], ("predicted", "true"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    add_colour_bar(figure, image, grid, "share of the map's\nlargest relevance")
    return figure


def draw_map_over_grey_picture(axes: Axes, picture: np.ndarray, values: np.ndarray) -> AxesImage:
    """Draw a map (gh, gw) over a picture (H, W, 3) in grey, as shares of the map's maximum."""
    bare(axes)
    height, width = picture.shape[:2]
    grey = np.broadcast_to(picture.mean(-1, keepdims=True).astype(np.uint8), picture.shape)
    axes.imshow(grey)
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    shares = values / (values.max() or 1)
    return axes.imshow(shares, cmap=CMAP, vmin=0, vmax=1, alpha=0.65, extent=edges)


def heads_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the classifier's attention by layer and head.

    The images are the first of their class, so that nobody selected them.
    """
    model = tested.attention_model
    layers = three_layers(len(model.blocks))
    index = torch.tensor(tested.first_of_each_class[:CHOSEN])
    request = MapRequest(model=model, images=tested.batch(index), layers=tuple(layers))
    maps = head_maps(request).cpu().numpy()  # (B, L, h, gh, gw)
    labels, names = tested.data.test.labels, tested.predictor.names
    pictures = [(tested.picture(i), one_line(names[labels[i]], 80)) for i in index.tolist()]
    who = "CLS attends" if model.cls_token is not None else "the pooled patches attend"
    rows = ", ".join(str(i + 1) for i in layers)
    return RunFigure(
        draw_axes=partial(_draw_heads, pictures, maps, layers),
        title="Attention by layer and head",
        summary=f"What {who} to in layers {rows}: each head, and the mean of the heads. All maps"
        " share one square-root scale.",
        details=f"The images are the first test image of each of the first {len(pictures)}"
        " classes.",
        source=source_of(tested, len(pictures)),
    )


def _draw_heads(
    pictures: list[tuple[np.ndarray, str]], maps: np.ndarray, layers: list[int]
) -> Figure:
    num_heads = maps.shape[2]
    maps = np.concatenate([maps, maps.mean(2, keepdims=True)], axis=2)
    columns, rows = num_heads + 2, len(pictures) * len(layers)
    figure = Figure(figsize=(0.8 * columns + 1.3, 0.8 * rows + 0.4), layout="compressed")
    grid = figure.subplots(rows, columns, squeeze=False)
    for row, axes in enumerate(grid[:, 0]):
        bare(axes)
        if row % len(layers):
            axes.set_axis_off()
            continue
        picture, name = pictures[row // len(layers)]
        axes.imshow(picture)
        words = axes.annotate(
            wrap_text(name, 0.85, 7, 4),
            (0.5, 0),
            (0, -3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7,
        )
        words.set_in_layout(len(layers) == 1)  # otherwise the cell below is free
    image = draw_map_grid(
        grid[:, 1:],
        maps.reshape(rows, num_heads + 1, *maps.shape[3:]),
        row_names=[f"layer {layer + 1}" for layer in layers] * len(pictures),
        column_names=[*(f"head {head + 1}" for head in range(num_heads)), "mean"],
        cmap=CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max() or 1),
    )
    add_share_bar(figure, image, grid)
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
        draw_axes=partial(_draw_distance, numbers),
        title="How far attention reaches",
        summary="Left: mean distance between a patch and the patches it attends to. Right: number"
        " of tokens it attends to, which is the exponential of the entropy. A bar is the standard"
        f" deviation over images. A patch is {model.spec.patch_size} pixels wide."
        f" {summarize_comparison(claims, untrained)}".rstrip(),
        source=source_of(tested, len(numbers.distance)),
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
    axes.axhline(
        uniform, color=MUTED, linewidth=0.9, linestyle=DASHES[1], label="uniform attention"
    )
    axes.set_ylim(0, 1.08 * max(uniform, (mean + spread).max().item()))
    axes.set_xlim(0.5, layers + 0.5)
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def faithfulness_figure(tested: RunOnTestSet) -> RunFigure:
    """Return a figure of the deletion and insertion curves of each method and two baselines."""
    found = measure_faithfulness(tested)
    count = len(found.methods[0].gap)
    best = found.best
    return RunFigure(
        draw_axes=partial(_draw_faithfulness, found),
        title="Faithfulness of the maps",
        summary="Left: the highest patches of each map are replaced by the mean colour; a fast fall"
        " is good. Right: they are put back; a fast rise is good."
        + (" Shaded: 95 % interval over images." if count > 1 else ""),
        details="The probability is a mean over images. Grey lines: the baselines, a random map and"
        " a Gaussian in the middle. The training had no pictures with grey patches."
        f" Best by insertion minus deletion: {best.method}.",
        source=source_of(tested, count),
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
    figure = Figure(figsize=(8.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _draw_side(left, found, "deletion")
    _draw_side(right, found, "insertion")
    left.set_xlabel("patches removed, %")
    right.set_xlabel("patches put back, %")
    left.set_ylabel("probability of the likeliest class")
    left.set_ylim(0, min(1.0, 1.05 * max(axes.dataLim.y1 for axes in (left, right))))
    add_legend_beside(right)
    return figure


def _draw_side(axes: Axes, found: Faithfulness, side: str) -> None:
    """Draw the mean curve of each method with its interval, deletion or insertion."""
    shares = 100 * np.array(found.shares)
    for i, each in enumerate(found.methods):
        values = getattr(each, side).double()
        is_base = each.method in BASELINES
        colour = MUTED if is_base else PALETTE[i % len(PALETTE)]
        mean = values.mean(0)
        if len(values) > 1:
            error = torch.tensor([mean_and_error(column)[1] for column in values.unbind(1)])
            axes.fill_between(
                shares, mean - error, mean + error, color=colour, alpha=0.12, linewidth=0
            )
        axes.plot(
            shares,
            mean,
            color=colour,
            linestyle=DASHES[1 + BASELINES.index(each.method)] if is_base else "-",
            linewidth=1.5,
            marker=None if is_base else MARKS[i % len(MARKS)],
            markersize=4,
            markevery=(i, max(1, len(shares) // 4)),
            label=each.method,
        )
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
