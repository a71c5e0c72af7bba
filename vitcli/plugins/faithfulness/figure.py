"""Whether the maps show what the prediction needs, and whether they depend on the model's weights.

The figure shows how fast the predicted probability falls and rises as patches are removed and put
back, beside two baselines: a random map and the picture's centre. Below, it shows what each kind of
map loses while layers lose their trained weights.

Axes: n images, S points of a curve or steps of a cascade, R draws of initial weights, B batch,
C channels, H W pixels, gh gw patch grid.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vitcli.core.inspect.grad_cam import feature_layer
from vitcli.core.inspect.maps import METHODS, MapRequest, grad_cam_map, head_maps
from vitcli.core.models.vit import VisionTransformer
from vitcli.plugins.distance.attention_numbers import untrained_model
from vitcli.plugins.distance.figure import Numbers, with_error
from vitcli.plugins.faithfulness import faithfulness as measure
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import DASHES, FAINT, MUTED, PALETTE, add_grid, add_legend_beside
from vitcli.runner.report.tables import Table, make_table
from vitcli.runner.text import join_words, quantity
from vitcli.runner.visualize.figure import MARKS, FigureRow, RunFigure, mean_and_error, source_of


def faithfulness(found: Numbers) -> Table:
    header = ["map", "deletion (low is good)", "insertion (high is good)", "insertion - deletion"]
    header += ["against random", "against centre"]
    rows = [
        [
            row["method"],
            f"{row['deletion_area']:.3f}",
            f"{row['insertion_area']:.3f}",
            f"{row['gap']:+.3f}",
            *(
                "" if row["method"] == other else with_error(row[f"against_{other}"], "+.3f")
                for other in ("random", "centre")
            ),
        ]
        for row in found["methods"]
    ]
    note = (
        "Areas under the curves of the predicted class's probability. Differences are paired by"
        f" image; \u00b1 is half the 95 % interval. n = {found['n']:,} test images."
    )
    return make_table(header, rows, range(1, 6), notes=(note,))


def randomisation(found: Numbers) -> Table:
    methods = found["methods"]
    rows = [
        [part, *(with_error(row["correlation"][step], "z.2f") for row in methods)]
        for step, part in enumerate(found["parts"])
    ]
    note = (
        "Spearman's rank correlation with the trained model's map, mean of"
        f" {quantity(found['n'], 'test image')} and {len(found['seeds'])} draws of initial weights;"
        ' \u00b1 is half the 95 % interval over draws. Adebayo et al. 2018, "Sanity Checks for'
        ' Saliency Maps".'
    )
    header = ["re-initialised down to", *(row["method"] for row in methods)]
    return make_table(header, rows, range(1, len(header)), notes=(note, found["sentence"]))


ATTENTION, GRAD_CAM = "last layer", "gradcam"
MAP_METHODS = (ATTENTION, *(name for name in METHODS if name != "cls"))
"""The kinds of maps that are checked. The attention of the last layer stands for ``cls``, because
every model has it."""
RANDOM, CENTRE = "random", "centre"
BASELINES = (RANDOM, CENTRE)
SEED = 0
NUM_DRAWS = 4
NUM_IMAGES = 100
SAME = 0.9
"""A map hardly depends on the layers that were re-initialised if its mean rank correlation with the
map of the trained model stays above this number."""
HARDLY, CLEARLY, OPEN = "hardly depends", "depends", "undecided"


@dataclass(frozen=True, kw_only=True)
class MethodCurves:
    """Curves of one method over the share of patches, and the areas under them."""

    method: str
    deletion: Tensor
    """Probability of the likeliest class at temperature 1, (n, S)."""
    insertion: Tensor
    """Probability of the likeliest class, (n, S)."""
    deletion_area: Tensor
    """(n,); low is good."""
    insertion_area: Tensor
    """(n,); high is good."""

    @property
    def gap(self) -> Tensor:
        """Insertion area minus deletion area, (n,): 0 on average for a random map."""
        return self.insertion_area - self.deletion_area


Curves = dict[str, MethodCurves]
"""Method -> its curves."""


def ranking(curves: Curves) -> list[MethodCurves]:
    methods = [curves[name] for name in MAP_METHODS]
    return sorted(methods, key=lambda method: -method.gap.mean().item())


def faithfulness_figure(tested: TrainedRun) -> RunFigure:
    shares, curves = measure_faithfulness(tested)
    gaps = {name: method.gap.mean().item() for name, method in curves.items()}
    seeds = [tested.spec.seed + 1 + draw for draw in range(NUM_DRAWS)]
    checked = check_randomisation(measure_randomisation(tested, seeds), seeds, gaps)
    best = ranking(curves)[0]
    count = len(best.gap)
    return RunFigure(
        draw_axes=partial(_draw_faithfulness, shares, curves, checked),
        title="Faithfulness of the maps",
        summary="Left: the highest patches of each map are replaced by the mean colour; a fast fall"
        " is good. Right: they are put back; a fast rise is good."
        + (" Shaded: 95 % interval over images. " if count > 1 else " ")
        + "Below: Spearman's rank correlation of each map with the trained model's map, while"
        f" layers lose their trained weights; mean of {quantity(checked['n'], 'image')} and of"
        f" {quantity(len(seeds), 'draw')} of initial weights, 95 % interval over draws.",
        details="The probability is a mean over images, at temperature 1. Grey lines: the"
        " baselines, a random map and a Gaussian in the middle. The training had no pictures with"
        f" grey patches. Best by insertion minus deletion: {best.method}. Above the line at {SAME},"
        f" a map hardly depends on what was re-initialised. {checked['sentence']}",
        source=source_of(tested, count),
        numbers=faithfulness_document(shares, curves) | {"randomisation": checked},
    )


def measure_faithfulness(tested: TrainedRun) -> tuple[list[float], Curves]:
    """Return the shares of the patches that are removed or inserted at each point, and curves."""
    tested.require_classifier()
    model = tested.attention_model
    counts = measure.removal_counts(model.grid_size[0] * model.grid_size[1])
    curves: dict[str, tuple[list[Tensor], list[Tensor]]] = {
        name: ([], []) for name in (*MAP_METHODS, *BASELINES)
    }
    for index, images in tested.batches(tested.sample):
        with torch.no_grad():
            classes = model(images).argmax(-1)
        # A random map depends only on the index of its image.
        draws = [torch.Generator().manual_seed(SEED + int(i)) for i in index]
        random = torch.stack([torch.rand(model.grid_size, generator=draw) for draw in draws])
        centre = measure.centre_map(model.grid_size).expand(len(images), *model.grid_size)
        baselines = {RANDOM: random.to(images.device), CENTRE: centre.to(images.device)}
        for name, maps in (maps_of_methods(model, images, classes) | baselines).items():
            for inserts, parts in zip((False, True), curves[name], strict=True):
                curve = measure.probability_curve(
                    model, images, maps, classes, counts, inserts=inserts
                )
                parts.append(curve.cpu())
    methods = {}
    for name, sides in curves.items():
        away, back = map(torch.cat, sides)
        methods[name] = MethodCurves(
            method=name,
            deletion=away,
            insertion=back,
            deletion_area=measure.area(away, counts),
            insertion_area=measure.area(back, counts),
        )
    return [count / counts[-1] for count in counts], methods


def maps_of_methods(model: VisionTransformer, images: Tensor, classes: Tensor) -> dict[str, Tensor]:
    """Return method -> map (B, gh, gw) of images (B, C, H, W), which explains ``classes`` (B,)."""
    last = len(model.blocks) - 1
    request = MapRequest(model=model, images=images, layers=(last,), classes=classes)
    for_grad_cam = replace(request, layers=(feature_layer(model) - 1,))
    by_method = {
        ATTENTION: head_maps(request).mean((1, 2)),
        **{name: METHODS[name](request) for name in METHODS if name not in ("cls", GRAD_CAM)},
        GRAD_CAM: grad_cam_map(for_grad_cam),
    }
    return {name: maps.to(images.device) for name, maps in by_method.items()}


def measure_randomisation(tested: TrainedRun, seeds: Sequence[int]) -> dict[str, Tensor]:
    """Compare the trained model's maps of its likeliest class with those of the cascade.

    Returns method -> rank correlations (R, n, S). ``seeds`` are those of the initial weights.
    """
    trained = tested.attention_model
    index = tested.spread_images(min(NUM_IMAGES, tested.num_images))
    draws: dict[str, list[Tensor]] = {method: [] for method in MAP_METHODS}
    for seed in seeds:
        fresh = untrained_model(tested, seed)
        batches: dict[str, list[Tensor]] = {method: [] for method in MAP_METHODS}
        for _, images in tested.batches(index):
            with torch.no_grad():
                classes = trained(images).argmax(-1)
            trained_maps = maps_of_methods(trained, images, classes)
            steps = [
                maps_of_methods(model, images, classes)
                for _, model in measure.randomised_cascade(trained, fresh)
            ]
            for method, maps in trained_maps.items():
                by_step = [measure.rank_correlation(maps, step[method]) for step in steps]
                batches[method].append(torch.stack(by_step, dim=1))
        for method, parts in batches.items():
            draws[method].append(torch.cat(parts))
    return {method: torch.stack(parts) for method, parts in draws.items()}


def faithfulness_document(shares: list[float], curves: Curves) -> dict[str, object]:
    """Return areas with half their 95 % intervals; ``against_*`` is a paired difference."""
    rows = []
    for method in curves.values():
        row: dict[str, object] = {
            "method": method.method,
            "deletion": method.deletion.mean(0).tolist(),
            "insertion": method.insertion.mean(0).tolist(),
        }
        for name in ("deletion_area", "insertion_area", "gap"):
            row[name], row[f"{name}_ci95"] = mean_and_error(getattr(method, name))
        for other in BASELINES:
            row[f"against_{other}"] = mean_and_error(method.gap - curves[other].gap)
        rows.append(row)
    best, second, *_ = ranking(curves)
    return {
        "n": len(best.gap),
        "best": best.method,
        "best_against_next": mean_and_error(best.gap - second.gap),
        "next": second.method,
        "shares": shares,
        "methods": rows,
    }


def check_randomisation(
    correlations: dict[str, Tensor], seeds: Sequence[int], gaps: dict[str, float]
) -> Numbers:
    """Return the mean correlations over draws and images, their intervals and verdicts.

    An interval is half the 95 % t interval over draws. ``halfway``, the head and the upper half of
    the layers are re-initialised; verdicts are those of this step. ``choice`` is the map with the
    largest gap of those that depend on the upper layers, if one does.
    """
    _, num_images, num_steps = next(iter(correlations.values())).shape
    depth = num_steps - 2
    halfway = (depth + 1) // 2
    methods = list[dict[str, Any]]()
    for method, values in correlations.items():
        pairs = [mean_and_error(values[:, :, step].mean(1)) for step in range(num_steps)]
        verdict = verdict_of(*pairs[halfway])
        methods.append({"method": method, "correlation": pairs, "verdict": verdict})
    passed = [row["method"] for row in methods if row["verdict"] == CLEARLY]
    found = {
        "n": num_images,
        "seeds": seeds,
        "parts": list(measure.cascade_parts(depth)),
        "halfway": halfway,
        "methods": methods,
        "choice": max(passed, key=lambda method: gaps[method], default=None),
    }
    return found | {"sentence": describe_randomisation(found)}


def verdict_of(mean: float, error: float | None) -> str:
    assert error is not None, "there are several draws"
    if mean - error > SAME:
        return HARDLY
    return CLEARLY if mean + error < SAME else OPEN


def describe_randomisation(found: Numbers) -> str:
    says = {
        HARDLY: "hardly depend on these layers",
        CLEARLY: "depend on them",
        OPEN: f"are undecided, because the interval contains {SAME}",
    }
    parts = []
    for verdict, words in says.items():
        named = [
            f"{row['method']} ({row['correlation'][found['halfway']][0]:z.2f})"
            for row in found["methods"]
            if row["verdict"] == verdict
        ]
        if named:
            parts.append(f"maps of {join_words(named)} {words}")
    depth = len(found["parts"]) - 2
    first = depth - found["halfway"] + 1
    upper = f"layer {depth}" if first == depth else f"layers {first} to {depth}"
    return (
        f"After the head and {upper} were re-initialised, by the rank correlation"
        f" with the trained model's maps: {'; '.join(parts)}."
    )


def _draw_faithfulness(shares: list[float], curves: Curves, checked: Numbers) -> Figure:
    figure = Figure(figsize=(8.6, 6.2), layout="constrained")
    axes = figure.subplot_mosaic([["left", "right"], ["below", "below"]])
    left, right = axes["left"], axes["right"]
    right.sharey(left)
    right.tick_params(labelleft=False)
    _draw_randomisation(axes["below"], checked)
    _draw_side(left, shares, curves, "deletion")
    _draw_side(right, shares, curves, "insertion")
    left.set(
        xlabel="patches removed, %", ylabel="probability of the likeliest class,\ntemperature 1"
    )
    right.set(xlabel="patches put back, %")
    left.set_ylim(0, min(1.0, 1.05 * max(axes.dataLim.y1 for axes in (left, right))))
    add_legend_beside(right)
    return figure


def _draw_side(axes: Axes, shares: list[float], curves: Curves, side: str) -> None:
    percent = 100 * np.array(shares)
    for i, method in enumerate(curves.values()):
        values = getattr(method, side).double()
        is_base = method.method in BASELINES
        colour = MUTED if is_base else PALETTE[i % len(PALETTE)]
        mean = values.mean(0)
        if len(values) > 1:
            error = torch.tensor([mean_and_error(column)[1] for column in values.unbind(1)])
            low, high = mean - error, mean + error
            axes.fill_between(percent, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(
            percent,
            mean,
            color=colour,
            linestyle=DASHES[1 + BASELINES.index(method.method)] if is_base else "-",
            linewidth=1.5,
            marker=None if is_base else MARKS[i % len(MARKS)],
            markersize=4,
            markevery=(i, max(1, len(shares) // 4)),
            label=method.method,
        )
    add_grid(axes, "y")


def _draw_randomisation(axes: Axes, found: Numbers) -> None:
    parts = found["parts"]
    steps = [*range(len(parts))]
    axes.axhline(SAME, color=FAINT, linewidth=1)
    axes.axhline(0, color=FAINT, linewidth=0.6)
    for i, row in enumerate(found["methods"]):
        mean, error = (list(values) for values in zip(*row["correlation"], strict=True))
        axes.errorbar(
            steps,
            mean,
            yerr=error,
            color=PALETTE[i % len(PALETTE)],
            marker=MARKS[i % len(MARKS)],
            markersize=4,
            linewidth=1.5,
            elinewidth=0.8,
            label=row["method"],
        )
    axes.set_xticks(steps, parts, rotation=90 if len(parts) > 10 else 0)
    axes.set(ylabel="rank correlation with\nthe trained model's map")
    axes.set(xlabel="re-initialised so far, from the head downwards")
    axes.set_ylim(min(-0.3, axes.get_ylim()[0]), 1.05)
    add_legend_beside(axes)


ROW = FigureRow(
    make=faithfulness_figure,
    tables=lambda found: [faithfulness(found), randomisation(found["randomisation"])],
    slow="the model answers many times per image ...",
)
