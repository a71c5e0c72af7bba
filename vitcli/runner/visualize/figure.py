"""A figure of one run with its caption and numbers, and the style of these figures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from vitcli.runner.text import one_line, quantity
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet

MARKS = "osD^vP*X<>"


@dataclass(frozen=True, kw_only=True)
class RunFigure:
    """Figure of one run, to be drawn in any format, with its title, caption and numbers."""

    draw: Callable[[], Figure]
    title: str
    caption: str
    """What the figure shows, for which model and data, and n."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """The measured numbers, as plain data."""


def make_caption(tested: RunOnTestSet, what: str, count: int | None = None) -> str:
    """Return a caption: what the figure shows, the model, its data and the number of images."""
    data = one_line(tested.predictor.spec.data.name.rpartition("/")[2], 40)
    images = "" if count is None else f", n = {quantity(count, 'test image')}"
    return f"{what} Model {one_line(tested.name, 60)}, trained on {data}{images}."


def three_layers(depth: int) -> list[int]:
    """Return the first, middle and last layer, from 0.

    Of 6 layers these are the layers 1, 3 and 6 of the report "Attention Mechanisms and
    Transformers for Visual Recognition", section V.C.
    """
    return sorted({0, (depth - 1) // 2, depth - 1})
