"""Figures of attention over pictures: of mistakes, and by layer and head.

Axes: n images, B pictures, L layers, h heads, gh gw patch grid, H W pixels.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.colors import PowerNorm, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from torch import Tensor

from vitcli.core.inspect.heads import logits_without_heads
from vitcli.core.inspect.maps import MapRequest, grad_rollout_map, head_maps
from vitcli.runner import figure_style as style
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import one_line, quantity
from vitcli.runner.visualize.figure import RunFigure, mean_and_error, note_of, source_of

MISTAKES = 8
TILE = 1.25
"""Inches from one mistake to the next."""
CHOSEN = 4
MAX_IMAGES = 500
"""Largest number of test images; every head needs two passes over them."""
CHANGES = {"removed": "without the head", "uniform": "head attends to all tokens alike"}
NEXT_LINE = "\n±"
MANY_HEADS = 120
"""Largest number of heads whose cells have room for a number."""


def mistakes_figure(tested: TrainedRun) -> RunFigure:
    model, labels = tested.attention_model, tested.data.test.labels
    shares, predicted = (tested.logits / tested.temperature).softmax(-1).max(-1)
    wrong = (predicted != labels).nonzero().flatten()
    if not len(wrong):
        raise NoFigureError("the model makes no mistake on the test images")
    worst = wrong[shares[wrong].argsort(descending=True, stable=True)][:MISTAKES]
    request = MapRequest(
        model=model,
        images=tested.batch(worst),
        layers=(len(model.blocks) - 1,),
        classes=predicted[worst].to(tested.device),
    )
    maps = grad_rollout_map(request).cpu().numpy()
    names = [one_line(name, 80) for name in tested.class_names]
    tiles = []
    for i, values in zip(worst.tolist(), maps, strict=True):
        name = style.wrap_text(f"predicted: {names[int(predicted[i])]}", TILE - 0.1, 7.5, 3)
        facts = [f"true: {names[int(labels[i])]}"]
        if file := one_line(Path(tested.file_name(i) or "").name, 80):
            facts.append(file)
        title = f"{name}\n{100 * shares[i].item():.0f} %"
        tiles.append((tested.picture(i), values, title, facts))
    return RunFigure(
        draw_axes=partial(_draw_mistakes, tiles),
        title="Most confident mistakes",
        summary=f"The {len(tiles)} most confident of {len(wrong):,} wrong predictions. Above: the"
        " predicted class with its probability, and the picture. Below: the gradient rollout for"
        " the predicted class, as a share of its largest value, and under it the true class"
        f"{' and the file' if tested.data.test.names else ''}.",
        source=source_of(tested, len(labels)),
        numbers={
            "num_mistakes": len(wrong),
            "surest": [
                {
                    "index": i,
                    "file": tested.file_name(i),
                    "said": tested.class_names[int(predicted[i])],
                    "probability": shares[i].item(),
                }
                for i in worst.tolist()
            ],
        },
    )


def _draw_mistakes(tiles: list[tuple[np.ndarray, np.ndarray, str, list[str]]]) -> Figure:
    figure = Figure(figsize=(max(TILE * len(tiles) + 1.4, 4.5), 3.2), layout="compressed")
    grid = figure.subplots(2, len(tiles), squeeze=False)
    for (picture, values, title, facts), (above, below) in zip(tiles, grid.T, strict=True):
        style.bare(above)
        above.imshow(picture)
        above.set_title(title, fontsize=7.5, loc="center")
        style.bare(below)
        height, width = picture.shape[:2]
        grey = picture.mean(-1, keepdims=True).astype(np.uint8)
        below.imshow(np.broadcast_to(grey, picture.shape))
        image = below.imshow(
            values / (values.max() or 1),
            cmap=style.CMAP,
            vmin=0,
            vmax=1,
            alpha=0.65,
            extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        )
        label = "\n".join(style.wrap_text(fact, TILE - 0.1, 7.5, 3) for fact in facts)
        below.set_xlabel(label, fontsize=7.5)
    for axes, name in zip(grid[:, 0], ("picture", "map"), strict=True):
        axes.set_ylabel(name, fontsize=8)
    style.add_colour_bar(figure, image, grid, "share of the map's\nlargest relevance")
    return figure


@dataclass(frozen=True, kw_only=True)
class HeadEffects:
    """Changes in accuracy, in points, with half of their paired 95 % intervals."""

    num_images: int
    accuracy: float
    """Of the whole model on these images, in percent."""
    effects: dict[str, np.ndarray]
    """``removed``, ``uniform`` -> mean and error, (2, L, h); one image has an infinite error."""

    @property
    def num_layers(self) -> int:
        return int(self.effects["removed"].shape[1])

    def as_numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = {"num_images": self.num_images, "accuracy": self.accuracy}
        for name, (mean, error) in self.effects.items():
            known = [[x if np.isfinite(x) else None for x in row] for row in error.tolist()]
            numbers[name] = {"points": mean.tolist(), "ci95": known}
        return numbers

    def summary(self) -> str:
        mean, error = self.effects["removed"]
        layer, head = np.unravel_index(mean.argmin(), mean.shape)
        count = int((np.abs(mean) > error).sum())
        cost = (
            f"Removing head {head + 1} of layer {layer + 1} costs most: {-mean.min():.1f}"
            f"{_error(error[layer, head], ' +- ')} points."
        )
        return (
            f"Tables (n = {quantity(self.num_images, 'test image')}): change in accuracy in points;"
            " left, without the head; right, with a head that attends to all tokens alike."
            f" {cost if mean.min() < 0 else 'No removed head lowers the accuracy.'} In the left"
            f" table, the interval of {quantity(count, 'head')} of {mean.size} excludes 0."
        )


def _error(error: float, sign: str) -> str:
    return f"{sign}{error:.1f}" if np.isfinite(error) else ""


def measure_heads(tested: TrainedRun) -> HeadEffects:
    model = tested.attention_model
    index = tested.spread_images(min(tested.num_images, MAX_IMAGES))
    labels = tested.data.test.labels[index]
    whole: list[Tensor] = []
    changed: dict[tuple[str, int, int], list[Tensor]] = defaultdict(list)
    for part, images in tested.batches(index):
        truth = tested.data.test.labels[part].to(images.device)
        with torch.no_grad():
            whole.append(model(images).argmax(-1) == truth)
        for layer, head, name, logits in logits_without_heads(model, images):
            changed[name, layer, head].append(logits.argmax(-1) == truth)
    right = torch.cat(whole).double()
    depth, heads = len(model.blocks), model.spec.num_heads
    effects = {name: np.zeros((2, depth, heads)) for name, *_ in changed}
    for (name, layer, head), parts in changed.items():
        mean, error = mean_and_error(100 * (torch.cat(parts).double() - right))
        effects[name][:, layer, head] = mean, np.inf if error is None else error
    accuracy = 100 * right.mean().item()
    return HeadEffects(num_images=len(labels), accuracy=accuracy, effects=effects)


def _draw_effects(place: SubplotSpec, heads: HeadEffects) -> None:
    panels = place.subgridspec(1, len(heads.effects)).subplots(squeeze=False)[0]
    limit = max(max(np.abs(values[0]).max() for values in heads.effects.values()), 0.1)
    norm = TwoSlopeNorm(0, -limit, limit)
    for axes, (name, (mean, error)) in zip(panels, heads.effects.items(), strict=True):
        image = axes.imshow(mean, cmap="RdBu", norm=norm, aspect="auto")
        axes.set_title(CHANGES[name], fontsize=8, loc="center")
        axes.set_xticks(range(mean.shape[1]), range(1, mean.shape[1] + 1))
        axes.set_yticks(range(mean.shape[0]), range(1, mean.shape[0] + 1))
        axes.set_xlabel("head", fontsize=8)
        axes.set_ylabel("layer", fontsize=8)
        axes.grid(False)
        for (layer, head), value in np.ndenumerate(mean if mean.size <= MANY_HEADS else mean[:0]):
            is_dark = abs(value) > 0.6 * limit
            axes.annotate(
                f"{value:+.1f}{_error(error[layer, head], NEXT_LINE)}",
                (head, layer),
                ha="center",
                va="center",
                fontsize=6.5,
                color="white" if is_dark else "black",
            )
    figure = panels[0].figure
    assert isinstance(figure, Figure)
    style.add_colour_bar(figure, image, panels, "change in accuracy,\npoints")


def heads_figure(tested: TrainedRun) -> RunFigure:
    model = tested.attention_model
    last = len(model.blocks) - 1
    layers = sorted({0, last // 2, last})  # of 6 layers, those of the report
    index = torch.tensor(tested.first_of_each_class[:CHOSEN])
    request = MapRequest(model=model, images=tested.batch(index), layers=tuple(layers))
    maps = head_maps(request).cpu().numpy()  # (B, L, h, gh, gw)
    pictures = [(tested.picture(i), one_line(tested.label(i), 80)) for i in index.tolist()]
    who = f"{model.reader} attend{'s' if model.reader == 'CLS' else ''}"
    rows = ", ".join(str(i + 1) for i in layers)
    effects = measure_heads(tested) if tested.spec.task.row.classifies else None
    return RunFigure(
        draw_axes=partial(_draw_heads, pictures, maps, layers, effects),
        title="Attention by layer and head",
        summary=f"Maps (n = {quantity(len(pictures), 'test image')}): what {who} to in layers"
        f" {rows}; each head, and the mean of the heads. All maps share one square-root scale."
        f" {effects.summary() if effects else ''}".rstrip(),
        details=f"The maps are of the first test image of each of the first {len(pictures)}"
        " classes. Intervals are of paired differences over images.",
        note=note_of(tested),
        source=source_of(tested),
        numbers=effects.as_numbers() if effects else {},
    )


def _draw_heads(
    pictures: list[tuple[np.ndarray, str]],
    maps: np.ndarray,
    layers: list[int],
    effects: HeadEffects | None,
) -> Figure:
    num_heads = maps.shape[2]
    maps = np.concatenate([maps, maps.mean(2, keepdims=True)], axis=2)
    columns, rows = num_heads + 2, len(pictures) * len(layers)
    heights = [0.8 * rows + 0.4, *([0.42 * effects.num_layers + 0.9] if effects else [])]
    figure = Figure(figsize=(max(0.8 * columns + 1.3, 6), sum(heights)), layout="constrained")
    places = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    grid = places[0].subgridspec(rows, columns).subplots(squeeze=False)
    if effects:
        _draw_effects(places[1], effects)
    for row, axes in enumerate(grid[:, 0]):
        style.bare(axes)
        if row % len(layers):
            axes.set_axis_off()
            continue
        picture, name = pictures[row // len(layers)]
        axes.imshow(picture)
        words = axes.annotate(
            style.wrap_text(name, 0.85, 7, 4),
            (0.5, 0),
            (0, -3),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=7,
        )
        words.set_in_layout(len(layers) == 1)  # otherwise the cell below is free
    image = style.draw_map_grid(
        grid[:, 1:],
        maps.reshape(rows, num_heads + 1, *maps.shape[3:]),
        row_names=[f"layer {layer + 1}" for layer in layers] * len(pictures),
        column_names=[*(f"head {head + 1}" for head in range(num_heads)), "mean"],
        cmap=style.CMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=maps.max() or 1),
    )
    style.add_share_bar(figure, image, grid)
    return figure
