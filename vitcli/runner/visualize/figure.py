"""A figure of one run with its caption and numbers, and what ``visualize`` asks of its row.

A number is a mean over images with its interval.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from markupsafe import Markup
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor

from vitcli.runner.attn_map.explain import MORE_THAN_WEIGHTS
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import add_source, add_title
from vitcli.runner.report.tables import Table
from vitcli.runner.text import one_line, quantity

MARKS = "osD^vP*X<>"
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """Figure of one run, to be drawn in any format, with its title, caption and numbers."""

    draw_axes: Callable[[], Figure]
    title: str
    summary: str
    """What the figure shows. It stands below the figure and on the page."""
    details: str = ""
    """More about the figure, only on the page."""
    note: str = ""
    """What a reader would not expect of the figure."""
    source: str
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def caption(self) -> str:
        parts = (self.summary, self.details, self.note, self.source)
        return " ".join(part for part in parts if part)

    def draw(self) -> Figure:
        figure = self.draw_axes()
        add_title(figure, self.title)
        parts = (self.summary, self.note, self.source)
        add_source(figure, " ".join(part for part in parts if part))
        return figure


@dataclass(frozen=True, kw_only=True)
class InteractiveFigure:
    """Figure of one run in HTML with a script: a page, and the part of a page about many runs."""

    title: str
    page: bytes
    markup: Markup
    style: Markup
    script: Markup
    note: str


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    make: Callable[[TrainedRun], RunFigure]
    tables: Callable[[Mapping[str, Any]], Sequence[Table]] = lambda numbers: ()
    """The tables of the figure's numbers."""
    slow: str = ""
    """What is said before a figure that takes far longer than the others."""


def note_of(tested: TrainedRun) -> str:
    """Return what a figure of attention weights leaves out, or empty text."""
    index = torch.tensor(tested.first_of_each_class[:1])
    return "" if tested.vit.states_all(tested.batch(index)) else MORE_THAN_WEIGHTS


def source_of(tested: TrainedRun, count: int | None = None) -> str:
    data = one_line(tested.spec.data.name.rpartition("/")[2], 40)
    images = "" if count is None else f", n = {quantity(count, 'test image')}"
    return f"Model {one_line(tested.name, 60)}, trained on {data}{images}."


def mean_and_error(values: Tensor) -> tuple[float, float | None]:
    """Return the mean of (n,) and half its 95 % t interval over images; None for one image."""
    values = values.double()
    count = len(values)
    if count < 2:
        return values.mean().item(), None
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return values.mean().item(), quantile * values.std().item() / count**0.5
