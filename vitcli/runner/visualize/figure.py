"""What a figure is before it is a file, and the look that figures share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitcli.runner.text import one_line
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet

BLUE, VERMILION = "#0072B2", "#D55E00"
PALETTE = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
"""Okabe and Ito's, which colour-blind readers tell apart; dashes and marks differ too."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 3)))
MARKS = "osD^vP*X<>"
CMAP = "viridis"


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """A figure, ready to be drawn in any format, with what belongs below it."""

    draw: Callable[[], Figure]
    title: str
    caption: str
    """What is seen, of which model, on which data, n."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """What was measured, as plain data."""


def about(subject: RunOnTestSet, what: str, count: int | None = None) -> str:
    """A caption: what is seen, then the model, its data, and on how many images."""
    data = one_line(subject.predictor.spec.data.name.rpartition("/")[2], 40)
    images = "" if count is None else f", n = {count:,} test images"
    return f"{what} Model {one_line(subject.name, 60)}, trained on {data}{images}."


def bare(axes: Axes) -> None:
    """No ticks and no frame, for pictures."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def layers_shown(depth: int) -> list[int]:
    """First, middle and last layer, from 0: the report's 1, 3 and 6 of 6."""
    return sorted({0, (depth - 1) // 2, depth - 1})
