"""What a task shows of a few fixed test images, and its pictures as sheets of pixels.

Axes: R rows, L columns, H W pixels.
"""

from collections.abc import Iterator

import matplotlib
import numpy as np
import torch
from torch import nn

from vitcli.core.data.source import DataSet
from vitcli.core.objectives.objective import Task
from vitcli.core.objectives.pictures import Grid, Heat, Picture
from vitcli.runner.attn_map.strip import draw_training_strip, fixed_index
from vitcli.runner.data.contact_sheet import arrange_rows, tile_size
from vitcli.runner.figure_style import CMAP
from vitcli.runner.run.tensorboard import PICTURES, TASK_PICTURES


def training_pictures(
    task: Task, module: nn.Module, data: DataSet
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield TensorBoard's tag and pixels of where the model looks, and of what the task shows."""
    model = type(task).encoder(module)
    strip = draw_training_strip(model, data.val or data.test, task.spec.data)
    if strip is not None:
        yield PICTURES, strip
    for name, picture in fixed_pictures(task, module, data)[0].items():
        if (sheet := picture_sheet(picture)) is not None:
            yield TASK_PICTURES + name, sheet


def fixed_pictures(task: Task, module: nn.Module, data: DataSet) -> tuple[dict[str, Picture], int]:
    """Return the task's pictures of the first test images of each class, and their number.

    The modes of the module's parts and torch's random state are restored, so a training does not
    depend on its pictures.
    """
    index = fixed_index(data.test)
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
            return task.pictures(module, data, index), len(index)
    finally:
        for part, mode in modes:
            part.training = mode


def picture_sheet(picture: Picture) -> np.ndarray | None:
    """Return a picture as pixels (height, width, 3) uint8 with its row names; None for a table."""
    if isinstance(picture, Grid):
        cells = picture.cells.permute(0, 1, 3, 4, 2).cpu().numpy()
    elif isinstance(picture, Heat):
        maps = picture.cells.float().cpu().numpy()
        shares = (maps - maps.min()) / max(float(np.ptp(maps)), 1e-12)
        cells = matplotlib.colormaps[CMAP](shares, bytes=True)[..., :3]
    else:
        return None
    names = picture.row_names or ("",) * len(cells)
    return arrange_rows(list(zip(names, cells, strict=True)), tile_size(*cells.shape[2:4]))
