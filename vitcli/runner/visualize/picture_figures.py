"""Figures of what a task shows.

Axes: R rows, L columns, H W pixels.
"""

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from vitcli.core.objectives.pictures import Grid
from vitcli.runner import figure_style as style
from vitcli.runner.attn_map.training_pictures import fixed_pictures
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import one_line
from vitcli.runner.visualize.figure import RunFigure, source_of

TILE = 0.95
"""Inches from one image to the next."""


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


def draw_picture(picture: Grid) -> Figure:
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
