"""The check of the maps with randomised weights: what each kind of map shows of each layer.

Axes: R draws of initial weights, n images, S steps of the cascade.
"""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from vitcli.core.inspect.randomisation import cascade_parts, randomised_cascade, rank_correlation
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import FAINT, PALETTE, add_legend_beside
from vitcli.runner.text import join_words, quantity
from vitcli.runner.visualize.faithfulness_numbers import MAP_METHODS, maps_of_methods
from vitcli.runner.visualize.figure import MARKS
from vitcli.runner.visualize.statistics import mean_and_error
from vitcli.runner.visualize.untrained import untrained_model

NUM_DRAWS = 4
NUM_IMAGES = 100
SAME = 0.9
"""A map hardly depends on the layers that were re-initialised if its mean rank correlation with the
map of the trained model stays above this number."""
HARDLY, CLEARLY, OPEN = "hardly depends", "depends", "undecided"


@dataclass(frozen=True, kw_only=True)
class Randomisation:
    """Rank correlations of maps with the trained model's maps, while layers lose their weights."""

    seeds: tuple[int, ...]
    """Random seeds of the initial weights: those after the seed of the run."""
    depth: int
    """Number of layers of the model."""
    correlations: dict[str, Tensor]
    """Method -> (R, n, S)."""

    @property
    def parts(self) -> list[str]:
        return cascade_parts(self.depth)

    @property
    def num_images(self) -> int:
        return next(iter(self.correlations.values())).shape[1]

    @property
    def halfway(self) -> int:
        """The step after which the head and the upper half of the layers are re-initialised."""
        return (self.depth + 1) // 2

    def correlation(self, method: str, step: int) -> tuple[float, float]:
        """Return the mean over draws and images, and half its 95 % t interval over draws."""
        mean, error = mean_and_error(self.correlations[method][:, :, step].mean(1))
        assert error is not None, "there are several draws"
        return mean, error

    def verdict(self, method: str) -> str:
        """Return whether the map depends on the head and the upper half of the layers."""
        mean, error = self.correlation(method, self.halfway)
        if mean - error > SAME:
            return HARDLY
        return CLEARLY if mean + error < SAME else OPEN


def measure_randomisation(tested: TrainedRun) -> Randomisation:
    """Compare the maps of the trained model with those of the cascade. Deterministic.

    The maps of a class explain the trained model's likeliest class at every step.
    """
    trained = tested.attention_model
    first = tested.spec.seed + 1
    seeds = tuple(range(first, first + NUM_DRAWS))
    index = tested.spread_images(min(NUM_IMAGES, tested.num_images))
    draws: dict[str, list[Tensor]] = {method: [] for method in MAP_METHODS}
    for seed in seeds:
        fresh = untrained_model(tested, seed)
        found: dict[str, list[Tensor]] = {method: [] for method in MAP_METHODS}
        for _, images in tested.batches(index):
            with torch.no_grad():
                classes = trained(images).argmax(-1)
            own = maps_of_methods(trained, images, classes)
            steps = [
                {
                    method: rank_correlation(own[method], maps).cpu()
                    for method, maps in maps_of_methods(model, images, classes).items()
                }
                for _, model in randomised_cascade(trained, fresh)
            ]
            for method in MAP_METHODS:
                found[method].append(torch.stack([step[method] for step in steps], dim=1))
        for method, parts in found.items():
            draws[method].append(torch.cat(parts))
    return Randomisation(
        seeds=seeds,
        depth=len(trained.blocks),
        correlations={method: torch.stack(each) for method, each in draws.items()},
    )


def randomisation_document(found: Randomisation, gaps: dict[str, float]) -> dict[str, Any]:
    """Return the check as plain data.

    Args:
        gaps: Method -> its mean insertion area minus its deletion area.
    """
    steps = range(len(found.parts))
    return {
        "n": found.num_images,
        "seeds": list(found.seeds),
        "parts": found.parts,
        "halfway": found.halfway,
        "methods": [
            {
                "method": method,
                "correlation": [found.correlation(method, step) for step in steps],
                "verdict": found.verdict(method),
            }
            for method in found.correlations
        ],
        "choice": choose_map(found, gaps),
        "sentence": describe_randomisation(found),
    }


def choose_map(found: Randomisation, gaps: dict[str, float]) -> str | None:
    """Return the best of the maps that depend on the upper layers; None if no map does.

    The best map has the largest insertion area minus deletion area.
    """
    passed = [method for method in found.correlations if found.verdict(method) == CLEARLY]
    return max(passed, key=lambda method: gaps[method], default=None)


def describe_randomisation(found: Randomisation) -> str:
    """Return what the check says about each map. The words follow from its numbers."""
    says = {
        HARDLY: "hardly depend on these layers",
        CLEARLY: "depend on them",
        OPEN: f"are undecided, because the interval contains {SAME}",
    }
    parts = []
    for verdict, words in says.items():
        named = [
            f"{method} ({found.correlation(method, found.halfway)[0]:z.2f})"
            for method in found.correlations
            if found.verdict(method) == verdict
        ]
        if named:
            parts.append(f"maps of {join_words(named)} {words}")
    return (
        f"After the head and {upper_layers(found)} were re-initialised, by the rank correlation"
        f" with the trained model's maps: {'; '.join(parts)}."
    )


def upper_layers(found: Randomisation) -> str:
    depth, first = found.depth, found.depth - found.halfway + 1
    return f"layer {depth}" if first == depth else f"layers {first} to {depth}"


def draw_randomisation(axes: Axes, found: Randomisation) -> None:
    """Draw the mean correlation of each method over the steps of the cascade."""
    steps = range(len(found.parts))
    axes.axhline(SAME, color=FAINT, linewidth=1)
    axes.axhline(0, color=FAINT, linewidth=0.6)
    for i, method in enumerate(found.correlations):
        pairs = [found.correlation(method, step) for step in steps]
        mean, error = (list(each) for each in zip(*pairs, strict=True))
        axes.errorbar(
            steps,
            mean,
            yerr=error,
            color=PALETTE[i % len(PALETTE)],
            marker=MARKS[i % len(MARKS)],
            markersize=4,
            linewidth=1.5,
            elinewidth=0.8,
            label=method,
        )
    axes.set_xticks(list(steps), found.parts, rotation=90 if len(found.parts) > 10 else 0)
    axes.set_xlabel("re-initialised so far, from the head downwards")
    axes.set_ylabel("rank correlation with\nthe trained model's map")
    axes.set_ylim(min(-0.3, axes.get_ylim()[0]), 1.05)
    add_legend_beside(axes)


def summarize_randomisation(found: Randomisation) -> str:
    """Return what the axes show, for the caption."""
    return (
        f"Below: Spearman's rank correlation of each map with the trained model's map, while layers"
        f" lose their trained weights; mean of {quantity(found.num_images, 'image')} and of"
        f" {quantity(len(found.seeds), 'draw')} of initial weights, 95 % interval over draws."
    )
