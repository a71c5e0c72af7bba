"""Faults of a figure that a reader would see: text that is cut off, overlaps or covers data."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from unittest.mock import patch

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox, BboxBase

from vitcli.runner.figure_style import STYLE

SLACK = 1.5
"""Pixels (of 100 per inch) by which boxes may touch; the box of a text has a small margin."""


def faults(draw: Callable[[], Figure]) -> list[str]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = draw()
        with drawn_texts() as texts:
            figure.draw_without_rendering()
        # The box of an annotation would include its line.
        boxes = [(text, Text.get_window_extent(text)) for text in texts]
        legends = [legend for axes in figure.axes if (legend := axes.get_legend())]
        return [
            *(f"cut off: {text.get_text()!r}" for text, box in boxes if is_cut(box, figure.bbox)),
            *overlaps(boxes),
            *covered(figure.axes, legends),
            *(f"not labelled: {axes}" for axes in figure.axes if lacks_label(axes)),
        ]


@contextmanager
def drawn_texts() -> Iterator[list[Text]]:
    found: list[Text] = []
    original = Text.draw

    def draw(text: Text, renderer) -> None:
        if text.get_visible() and text.get_text().strip() and text not in found:
            found.append(text)
        original(text, renderer)

    with patch.object(Text, "draw", draw):
        yield found


def is_cut(box: Bbox, whole: BboxBase) -> bool:
    return (
        box.x0 < whole.x0 - SLACK
        or box.y0 < whole.y0 - SLACK
        or box.x1 > whole.x1 + SLACK
        or box.y1 > whole.y1 + SLACK
    )


def overlaps(boxes: list[tuple[Text, Bbox]]) -> list[str]:
    """Return the pairs of texts that overlap; the box of a slanted text is larger than the text."""
    return [
        f"overlap: {one.get_text()!r} and {other.get_text()!r}"
        for (one, a), (other, b) in combinations(boxes, 2)
        if not (one.get_rotation() % 90 and other.get_rotation() % 90)
        if common(a, b)
    ]


def common(a: Bbox, b: Bbox) -> bool:
    return min(a.x1, b.x1) - max(a.x0, b.x0) > SLACK and min(a.y1, b.y1) - max(a.y0, b.y0) > SLACK


def covered(axes: list[Axes], legends: list[Legend]) -> list[str]:
    return [
        f"covered by the legend: {each}"
        for each in axes
        for legend in legends
        if common(each.get_window_extent(), legend.get_window_extent())
    ]


def lacks_label(axes: Axes) -> bool:
    return axes.axison and any(
        any(tick.get_visible() and tick.get_text() for tick in axis.get_ticklabels())
        and not axis.get_label().get_text()
        for axis in (axes.xaxis, axes.yaxis)
    )
