"""Which head matters: the change in accuracy when a head is removed or attends to all alike.

Axes: n images, L layers, h heads.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from torch import Tensor

from vitcli.core.inspect.heads import logits_without_heads
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import add_colour_bar
from vitcli.runner.text import quantity
from vitcli.runner.visualize.statistics import mean_and_error

MAX_IMAGES = 500
"""Largest number of test images; every head needs two passes over them."""
CHANGES = {"removed": "without the head", "uniform": "head attends to all tokens alike"}
NEXT_LINE = "\n±"
MANY = 120
"""Largest number of heads whose cells have room for a number."""


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
        return {
            "num_images": self.num_images,
            "accuracy": self.accuracy,
            **{
                name: {
                    "points": mean.tolist(),
                    "ci95": np.where(np.isfinite(error), error, None).tolist(),
                }
                for name, (mean, error) in self.effects.items()
            },
        }

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


def draw_heads(place: SubplotSpec, heads: HeadEffects) -> None:
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
        for (layer, head), value in np.ndenumerate(mean if mean.size <= MANY else mean[:0]):
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
    add_colour_bar(figure, image, panels, "change in accuracy,\npoints")
