"""Figures of what a task shows: images and tables.

Axes: R rows, L columns, H W pixels.
"""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from vitcli.core.objectives.pictures import Picture, Table
from vitcli.runner import figure_style as style
from vitcli.runner.attn_map.training_pictures import fixed_pictures
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, source_of

TILE = 0.95
"""Inches from one image to the next."""
CELL_WIDTH = 2.6
"""Largest width of a column of text in inches."""
LINE = 0.15
"""Inches from one line of text to the next."""


def picture_figures(tested: TrainedRun) -> dict[str, RunFigure]:
    task, data = tested.task(), tested.data.to(tested.device)
    pictures, count = fixed_pictures(task, task.module, data)
    if not pictures:
        name = tested.spec.task.name
        raise NoFigureError(f"the task {name!r} has no pictures of its own")
    return {
        name: RunFigure(
            draw_axes=partial(draw_picture, picture),
            title=picture.title,
            summary=picture.caption,
            source=source_of(tested, count),
        )
        for name, picture in pictures.items()
    }


def draw_picture(picture: Picture) -> Figure:
    if isinstance(picture, Table):
        return _draw_table(picture)
    cells = picture.cells.permute(0, 1, 3, 4, 2).cpu().numpy()
    rows, columns = cells.shape[:2]
    aspect = cells.shape[2] / cells.shape[3]
    width = TILE if rows > 1 or columns > 2 else 2 * TILE
    size = (max(width * columns + 1.6, 4.5), width * aspect * rows + 0.5)
    figure = Figure(figsize=size, layout="compressed")
    grid = figure.subplots(rows, columns, squeeze=False)
    for place, axes in np.ndenumerate(grid):
        style.bare(axes)
        axes.set_box_aspect(aspect)
        axes.imshow(cells[place])
    for axes, name in zip(grid[0], picture.columns, strict=True):
        title = style.wrap_text(one_line(name, 80), width - 0.1, 7.5, 3)
        axes.set_title(title, fontsize=7.5, loc="center")
    for axes, name in zip(grid[:, 0], picture.row_names, strict=False):
        label = style.wrap_text(one_line(name, 80), 1.2, 7.5, 3)
        axes.set_ylabel(label, fontsize=7.5, rotation=0, ha="right", va="center")
    return figure


def _draw_table(picture: Table) -> Figure:
    lines = [
        [style.wrap_text(one_line(cell, 300), CELL_WIDTH, style.SMALL_SIZE) for cell in row]
        for row in (picture.head, *picture.rows)
    ]
    widths = [
        0.25
        + max(
            style.text_width(line, style.SMALL_SIZE) for cell in column for line in cell.split("\n")
        )
        for column in zip(*lines, strict=True)
    ]
    heights = [LINE * max(1 + cell.count("\n") for cell in row) + 0.06 for row in lines]
    width, height = max(sum(widths) + 0.2, 4.5), sum(heights) + 0.1
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    top = 0.05
    for number, (row, tall) in enumerate(zip(lines, heights, strict=True)):
        left = 0.0
        for cell, wide in zip(row, widths, strict=True):
            weight = "normal" if number else "bold"
            axes.text(
                left, top, cell, fontsize=style.SMALL_SIZE, va="top", color=style.INK, weight=weight
            )
            left += wide
        top += tall
        axes.axhline(top - 0.04, color=style.FAINT if number else style.MUTED, linewidth=0.6)
    return figure
