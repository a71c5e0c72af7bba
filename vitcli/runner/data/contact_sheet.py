"""Contact sheet: one picture with a row of training images per class.

Axes: C channels, H W pixels.
"""

import io
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vitcli.core.data.source import DataSet
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.files import commit, require_folder
from vitcli.runner.text import one_line

COLUMNS = 10
MAX_ROWS = 100
TILE = 64
GAP = 6
MARGIN = 24
LABEL_SIZE = 17
TITLE_SIZE = 20
GROUND, INK, MUTED = "#f3f3f1", "#222222", "#707070"


def write_contact_sheet(data: DataSet, path: Path) -> None:
    """Write ten training images of each class as a PNG file; see ``require_png``.

    Raises:
        ResourceError: The file cannot be written.
    """
    with io.BytesIO() as file:
        contact_sheet(data).save(file, "PNG", optimize=True)
        content = file.getvalue()
    try:
        commit(path, content)
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written: {error.strerror}") from error


def require_png(path: Path) -> None:
    """Refuse a name that does not end in .png, or a folder that does not exist."""
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path}: the picture is a PNG; name it {path.with_suffix('.png').name}")
    require_folder(path)


def contact_sheet(data: DataSet) -> Image.Image:
    """Return the sheet: a title and one row per class, with its name and up to ten images."""
    names = [one_line(name) for name in data.class_names[:MAX_ROWS]]
    left = MARGIN + max(round(font(LABEL_SIZE).getlength(name)) for name in names) + 2 * GAP
    top = MARGIN + TITLE_SIZE + 3 * GAP
    pitch = TILE + GAP
    size = (left + COLUMNS * pitch - GAP + MARGIN, top + len(names) * pitch - GAP + MARGIN)
    sheet = Image.new("RGB", size, GROUND)
    draw = ImageDraw.Draw(sheet)
    title, right = one_line(data.name.rpartition("/")[2]), (size[0] - MARGIN, MARGIN + 3)
    draw.text((MARGIN, MARGIN), title, fill=INK, font=font(TITLE_SIZE), anchor="lt")
    small = font(LABEL_SIZE - 3)
    draw.text(right, about(data, len(names)), fill=MUTED, font=small, anchor="rt")
    for row, name in enumerate(names):
        y = top + row * pitch
        place = (left - 2 * GAP, y + TILE / 2)
        draw.text(place, name, fill=INK, font=font(LABEL_SIZE), anchor="rm")
        for column, pixels in enumerate(examples(data, row)):
            sheet.paste(tile(pixels), (left + column * pitch, y))
    return sheet


def about(data: DataSet, num_rows: int) -> str:
    """Return the subtitle: number and size of the images, number of classes."""
    height, width = data.img_size
    text = f"{len(data.train):,} training images, {height}x{width}, {data.num_classes} classes"
    return text if num_rows == data.num_classes else f"{text}, the first {num_rows} shown"


def examples(data: DataSet, label: int) -> Tensor:
    """Return the first images of a class, (n, C, H, W) with n <= 10: an unbiased sample."""
    found = (data.train.labels == label).nonzero().flatten()[:COLUMNS]
    return data.train.pixels[found]


def tile(pixels: Tensor) -> Image.Image:
    """Return pixels (C, H, W) uint8 as a square tile; small images are enlarged without blur."""
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(np.broadcast_to(array, (*array.shape[:2], 3)).copy())
    scale = TILE / max(image.size)
    if scale >= 1:
        size = (image.width * int(scale), image.height * int(scale))
        image = image.resize(size, Image.Resampling.NEAREST)
    else:
        image.thumbnail((TILE, TILE), Image.Resampling.LANCZOS)
    square = Image.new("RGB", (TILE, TILE), GROUND)
    square.paste(image, ((TILE - image.width) // 2, (TILE - image.height) // 2))
    return square


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans of matplotlib, which has the letters of most languages."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSans.ttf"), size)
