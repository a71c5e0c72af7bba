"""Sheets of named rows of pictures, such as a row of training images per class.

Axes: B images, C channels, H W pixels.
"""

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vitcli.core.data.source import DataSet
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import commit, require_folder, require_replaceable
from vitcli.runner.text import one_line

COLUMNS = 10
MAX_ROWS = 100
TILE = 64
GAP = 6
MARGIN = 88
LABEL_SIZE = 20
"""Size of the row names in pixels. TensorBoard shows a sheet at about half its width."""
MARK = ("Software", "vitcli data info")
"""Key and text in the file, which show that it may be replaced."""
GROUND, INK, MUTED = "#f3f3f1", "#222222", "#707070"


def write_contact_sheet(data: DataSet, path: Path) -> None:
    facts = PngInfo()
    facts.add_text(*MARK)
    with io.BytesIO() as file:
        contact_sheet(data).save(file, "PNG", optimize=True, pnginfo=facts)
        commit(path, file.getvalue())


def require_png(path: Path) -> None:
    if path.suffix.lower() != ".png":
        raise ConfigError(f"{path}: the picture is a PNG; name it {path.with_suffix('.png').name}")
    require_folder(path)
    require_replaceable(path, "sheet", "\0".join(MARK).encode())


def contact_sheet(data: DataSet) -> Image.Image:
    rows = []
    for label, name in enumerate(data.class_names[:MAX_ROWS]):
        first = (data.train.labels == label).nonzero().flatten()[:COLUMNS]  # an unbiased sample
        rows.append((one_line(name), to_rgb(data.train.pixels[first])))
    height, width = data.img_size
    about = f"{len(data.train):,} training images, {height}x{width}, {data.num_classes} classes"
    about += f", the first {len(rows)} shown" if len(rows) < data.num_classes else ""
    grid = Image.fromarray(arrange_rows(rows, tile_size(*data.img_size)))
    words = [one_line(data.name.rpartition("/")[2]), about]
    width = max(grid.width, *(2 * GAP + round(font(LABEL_SIZE).getlength(line)) for line in words))
    top = 2 * (LABEL_SIZE + GAP) + 2 * GAP
    sheet = Image.new("RGB", (width, top + grid.height), GROUND)
    draw = ImageDraw.Draw(sheet)
    for i, (line, colour) in enumerate(zip(words, (INK, MUTED), strict=True)):
        place = (GAP, GAP + i * (LABEL_SIZE + GAP))
        draw.text(place, line, fill=colour, font=font(LABEL_SIZE), anchor="lt")
    sheet.paste(grid, (0, top))
    return sheet


def to_rgb(pixels: Tensor) -> np.ndarray:
    """(B, C, H, W) uint8 -> (B, H, W, 3) for display; images without 3 channels become grey."""
    if pixels.shape[1] != 3:
        pixels = pixels.float().mean(1, keepdim=True).round().byte().expand(-1, 3, -1, -1)
    return pixels.permute(0, 2, 3, 1).cpu().numpy()


def tile_size(height: int, width: int) -> tuple[int, int]:
    """Return an image's (width, height) in the strip; small images grow by a whole factor."""
    longest = max(height, width)
    scale = TILE // longest if longest <= TILE else TILE / longest
    return max(1, round(width * scale)), max(1, round(height * scale))


def arrange_rows(rows: Sequence[tuple[str, np.ndarray]], size: tuple[int, int]) -> np.ndarray:
    """Draw named rows of pictures (B, any height, any width, 3) uint8, each resized to ``size``."""
    (width, height), count = size, max(len(pictures) for _, pictures in rows)
    longest = max(font(LABEL_SIZE).getlength(name) for name, _ in rows)
    margin = max(MARGIN, round(longest) + 2 * GAP)
    shape = (margin + count * (width + GAP), GAP + len(rows) * (height + GAP))
    sheet = Image.new("RGB", shape, GROUND)
    draw = ImageDraw.Draw(sheet)
    for i, (name, pictures) in enumerate(rows):
        y = GAP + i * (height + GAP)
        draw.text((GAP, y + height / 2), name, fill=INK, font=font(LABEL_SIZE), anchor="lm")
        for j, pixels in enumerate(pictures):
            shrinks = pixels.shape[0] > height or pixels.shape[1] > width
            method = Image.Resampling.LANCZOS if shrinks else Image.Resampling.NEAREST
            picture = Image.fromarray(np.ascontiguousarray(pixels)).resize(size, method)
            sheet.paste(picture, (margin + j * (width + GAP), y))
    return np.asarray(sheet)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans of matplotlib, which has the letters of most languages."""
    import matplotlib  # needs a folder that it can write into

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / "DejaVuSans.ttf"), size)
