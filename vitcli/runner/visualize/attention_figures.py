"""Where a model looks: in its mistakes, by layer and head, how far, and whether it matters.

Axes: L layers, h heads, gh gw patch grid, H W pixels, n images.
"""

from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vitcli.core.inspect.maps import MapRequest, grad_rollout_map, head_maps
from vitcli.runner.figure_style import FAINT, INK, MUTED
from vitcli.runner.text import one_line
from vitcli.runner.visualize.attention_numbers import AttentionNumbers, measure_attention
from vitcli.runner.visualize.claims import judge
from vitcli.runner.visualize.faithfulness_numbers import (
    BASELINES,
    Faithfulness,
    measure_faithfulness,
)
from vitcli.runner.visualize.figure import (
    CMAP,
    DASHES,
    MARKS,
    PALETTE,
    RunFigure,
    about,
    bare,
    layers_shown,
)
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet
from vitcli.runner.visualize.statistics import mean_and_error

MISTAKES = 8
CHOSEN = 4


def mistakes(subject: RunOnTestSet) -> RunFigure:
    """The wrong answers that the model was surest of, and what they rest on."""
    model, labels = subject.attending, subject.data.test.labels
    shares, said = subject.logits.softmax(-1).max(-1)
    wrong = (said != labels).nonzero().flatten()
    if not len(wrong):
        raise NoFigureError("the model makes no mistake on the test images")
    worst = wrong[shares[wrong].argsort(descending=True, stable=True)][:MISTAKES]
    ask = MapRequest(
        model=model,
        images=subject.batch(worst),
        layers=(len(model.blocks) - 1,),
        classes=said[worst].to(subject.predictor.device),
    )
    maps = grad_rollout_map(ask).cpu().numpy()
    names = [one_line(name, 12) for name in subject.predictor.names]
    tiles = [
        (
            subject.picture(i),
            m,
            f"{names[said[i]]} {100 * shares[i]:.0f} %\nis {names[labels[i]]}",
        )
        for i, m in zip(worst.tolist(), maps, strict=True)
    ]
    return RunFigure(
        draw=partial(_mistakes, tiles),
        title="Most confident mistakes",
        caption=about(
            subject,
            f"The {len(tiles)} surest of {len(wrong):,} wrong answers; below each, gradient rollout"
            " for the class that was named, each map on its own scale.",
            len(labels),
        ),
        numbers={
            "num_mistakes": len(wrong),
            "surest": [
                {
                    "index": i,
                    "said": subject.predictor.names[said[i]],
                    "probability": shares[i].item(),
                }
                for i in worst.tolist()
            ],
        },
    )


def _mistakes(tiles: list[tuple[np.ndarray, np.ndarray, str]]) -> Figure:
    figure = Figure(figsize=(1.05 * len(tiles), 2.7), layout="constrained")
    grid = figure.subplots(2, len(tiles), squeeze=False)
    for (picture, values, text), (above, below) in zip(tiles, grid.T, strict=True):
        bare(above)
        above.imshow(picture)
        above.set_title(text, fontsize=7.5, loc="center")
        over(below, picture, values)
    return figure


def over(axes: Axes, picture: np.ndarray, values: np.ndarray) -> None:
    """A map (gh, gw) over its grey picture (H, W, 3), from 0 to its own maximum."""
    bare(axes)
    height, width = picture.shape[:2]
    grey = np.broadcast_to(picture.mean(-1, keepdims=True).astype(np.uint8), picture.shape)
    axes.imshow(grey)
    edges = (-0.5, width - 0.5, height - 0.5, -0.5)
    axes.imshow(values, cmap=CMAP, vmin=0, vmax=values.max() or 1, alpha=0.65, extent=edges)


def heads(subject: RunOnTestSet) -> RunFigure:
    """Attention behind the read-out, by layer and head, for images that nobody picked."""
    model = subject.attending
    layers = layers_shown(len(model.blocks))
    index = torch.tensor(subject.firsts[:CHOSEN])
    ask = MapRequest(model=model, images=subject.batch(index), layers=tuple(layers))
    maps = head_maps(ask).cpu().numpy()  # (B, L, h, gh, gw)
    pictures = [subject.picture(i) for i in index.tolist()]
    who = "CLS attends" if model.cls_token is not None else "the pooled patches attend"
    rows = ", ".join(str(i + 1) for i in layers)
    return RunFigure(
        draw=partial(_heads, pictures, maps, layers),
        title="Attention by layer and head",
        caption=about(
            subject,
            f"What {who} to in layers {rows}, by head and on the mean of the heads; one"
            " square-root scale. The first test image of each of the first"
            f" {len(pictures)} classes.",
            len(pictures),
        ),
    )


def _heads(pictures: list[np.ndarray], maps: np.ndarray, layers: list[int]) -> Figure:
    num_heads = maps.shape[2]
    maps = np.concatenate([maps, maps.mean(2, keepdims=True)], axis=2)
    columns, rows = num_heads + 2, len(pictures) * len(layers)
    figure = Figure(figsize=(0.8 * columns + 1.1, 0.8 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    scale = PowerNorm(0.5, vmin=0, vmax=maps.max() or 1)
    for (row, column), axes in np.ndenumerate(grid):
        image, layer = divmod(row, len(layers))
        bare(axes)
        if column:
            drawn = axes.imshow(maps[image, layer, column - 1], cmap=CMAP, norm=scale)
        elif layer == 0:
            axes.imshow(pictures[image])
        else:
            axes.set_axis_off()
        if column == 1:
            axes.set_ylabel(f"layer {layers[layer] + 1}", fontsize=8)
        if row == 0 and column:
            name = "mean" if column == columns - 1 else f"head {column}"
            axes.set_title(name, fontsize=8, loc="center")
    figure.colorbar(drawn, ax=grid, fraction=0.04, pad=0.02).set_label("share of attention")
    return figure


def distance(subject: RunOnTestSet) -> RunFigure:
    """Mean attention distance and entropy of every head, with their spread over images."""
    if subject.attending.grid_size == (1, 1):
        raise NoFigureError("one patch has no distance")
    numbers = measure_attention(subject)
    size = subject.attending.spec.patch_size
    return RunFigure(
        draw=partial(_distance, numbers),
        title="How far attention reaches",
        caption=about(
            subject,
            "Mean distance between a patch and what it attends to (left), and how many tokens"
            " that amounts to, as the exponential of the entropy (right). A mark is a head, its bar"
            f" the standard deviation over images; the line is the mean of the heads. A patch is"
            f" {size} pixels wide.",
            len(numbers.distance),
        ),
        numbers=distance_document(numbers),
    )


def distance_document(numbers: AttentionNumbers) -> dict[str, object]:
    """Layers from 1 on; means over images and heads, spreads and intervals over images."""
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
        "claims": [vars(claim) for claim in judge(numbers)],
    }


def _distance(numbers: AttentionNumbers) -> Figure:
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    tokens = numbers.entropy.double().exp()
    _by_head(left, numbers.distance.double(), numbers.uniform)
    left.set_ylabel("mean attention distance, pixels")
    _by_head(right, tokens, numbers.num_tokens)
    right.set_ylabel("tokens attended to (exp of the entropy)")
    return figure


def _by_head(axes: Axes, values: torch.Tensor, uniform: float) -> None:
    """(n, L, h) as marks with bars, one column a layer, and the value of uniform attention."""
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    if num_heads <= 8:
        axes.legend(frameon=False, fontsize=7.5, ncols=2, loc="lower right")


def faithfulness(subject: RunOnTestSet) -> RunFigure:
    """Deletion and insertion curves of each method, against maps that know nothing."""
    found = measure_faithfulness(subject)
    count = len(found.methods[0].gap)
    best = found.best
    return RunFigure(
        draw=partial(_faithfulness, found),
        title="Do the maps matter to the model?",
        caption=about(
            subject,
            "Mean probability of the likeliest class while the highest patches of each map are"
            " replaced by the mean colour (left, falling fast is good) or put back (right, rising"
            " fast is good). Grey: a random map, and a Gaussian in the middle. Shaded: 95 %"
            " interval over images. Pictures with grey patches are unlike those of the training."
            f" Best by insertion minus deletion: {best.method}.",
            count,
        ),
        numbers=faithfulness_document(found),
    )


def faithfulness_document(found: Faithfulness) -> dict[str, object]:
    """Areas with half their 95 % intervals; ``against_*`` are differences paired by image."""
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


def _faithfulness(found: Faithfulness) -> Figure:
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
