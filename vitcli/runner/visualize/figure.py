"""A figure of one run with its caption and numbers, and the style of these figures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import add_source, add_title
from vitcli.runner.text import one_line, quantity

MARKS = "osD^vP*X<>"


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """Figure of one run, to be drawn in any format, with its title, caption and numbers."""

    draw_axes: Callable[[], Figure]
    title: str
    summary: str
    """What the figure shows. It stands below the figure and on the page."""
    details: str = ""
    """More about the figure, only on the page."""
    source: str
    numbers: dict[str, Any] = field(default_factory=dict)

    @property
    def caption(self) -> str:
        return " ".join(part for part in (self.summary, self.details, self.source) if part)

    def draw(self) -> Figure:
        figure = self.draw_axes()
        add_title(figure, self.title)
        add_source(figure, f"{self.summary} {self.source}")
        return figure


def source_of(tested: TrainedRun, count: int | None = None) -> str:
    data = one_line(tested.spec.data.name.rpartition("/")[2], 40)
    images = "" if count is None else f", n = {quantity(count, 'test image')}"
    return f"Model {one_line(tested.name, 60)}, trained on {data}{images}."
