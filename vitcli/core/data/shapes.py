"""The embedded data set: ten classes of small objects, computed without a download.

The ten classes are five pairs. Both classes of a pair consist of the same parts, stacked in the
opposite order. The gap between the parts is more than half of a 4-pixel patch. Therefore the
content of a patch shows the pair, and only the positions of the patches show the class. A model
without positions reaches an accuracy of about 50 %.

The bytes are the same on every machine. Only operations that float64 defines exactly are used:
torch.rand, + - * /, sqrt, floor, minimum and comparison. Transcendental functions, matrix products
and sums are not used.
Axes: n images of a chunk, H W pixels; x to the right, y down, in pixels.
"""

from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vitcli.core.data.source import Images

SIDE = 32
CHUNK = 50
"""Number of images drawn at a time. Another number would give other images, because it changes the
order of the random numbers."""
GAP = 3.0
"""Pixels between two rows of parts, before scaling."""


class Part(NamedTuple):
    """Disc, box or triangle with its half width, half height and horizontal position in the row."""

    kind: str
    width: float
    height: float
    x: float = 0.0


Row = tuple[Part, ...]
"""Parts side by side, all of the same height."""

PAIRS: dict[tuple[str, str], tuple[Row, Row]] = {
    ("tree", "broom"): ((Part("triangle", 6.0, 4.5),), (Part("box", 1.4, 4.0),)),
    ("snowman", "bulb"): ((Part("disc", 3.0, 3.0),), (Part("disc", 5.2, 5.2),)),
    ("hat", "table"): ((Part("box", 3.4, 3.8),), (Part("box", 7.5, 1.3),)),
    ("cart", "frog"): (
        (Part("box", 7.0, 3.4),),
        (Part("disc", 2.3, 2.3, -4.2), Part("disc", 2.3, 2.3, 4.2)),
    ),
    ("pawn", "gnome"): ((Part("disc", 3.6, 3.6),), (Part("triangle", 4.6, 4.8),)),
}
"""Names of a pair -> the rows of the first class, from top to bottom. The second class has the same
rows from bottom to top."""

CLASSES: dict[str, tuple[Row, ...]] = {
    name: order
    for names, rows in PAIRS.items()
    for name, order in zip(names, (rows, rows[::-1]), strict=True)
}
CLASS_NAMES: tuple[str, ...] = tuple(CLASSES)


def shapes(num_train: int = 10_000, num_test: int = 2_000, seed: int = 0) -> tuple[Images, Images]:
    """Return training and test images (N, 3, 32, 32); class counts differ by at most one image."""
    return _split(num_train, 2 * seed), _split(num_test, 2 * seed + 1)


def _split(num_images: int, seed: int) -> Images:
    generator = Generator().manual_seed(seed)
    pixels, labels = [], []
    for label, rows in enumerate(CLASSES.values()):
        count = len(range(label, num_images, len(CLASSES)))
        for start in range(0, count, CHUNK):
            pixels.append(draw(rows, min(CHUNK, count - start), generator))
        labels.append(torch.full((count,), label))
    order = torch.randperm(num_images, generator=generator)
    return Images(torch.cat(pixels)[order], torch.cat(labels)[order])


class Uniform:
    """Source of uniform float64 numbers that broadcast against (n, 3, H, W)."""

    def __init__(self, num_images: int, generator: Generator) -> None:
        self.num_images, self.generator = num_images, generator

    def __call__(
        self, low: float, high: float, channels: int = 1, height: int = 1, width: int = 1
    ) -> Tensor:
        shape = (self.num_images, channels, height, width)
        unit = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return low + (high - low) * unit


def draw(rows: tuple[Row, ...], num_images: int, generator: Generator) -> Tensor:
    """Draw images of one class: (n, 3, H, W) uint8."""
    uniform = Uniform(num_images, generator)
    steps = torch.arange(SIDE, dtype=torch.float64) - (SIDE - 1) / 2
    x, y = steps[None, :], steps[:, None]
    canvas = draw_background(uniform, x, y)
    canvas = add_distractors(canvas, uniform, x, y)
    scale = uniform(1.0, 1.3)
    x, y = rotate(x - uniform(-4, 4), y - uniform(-3, 3), uniform(-0.1, 0.1))
    y = y + uniform(-0.12, 0.12) * x
    top = -(sum(2 * row[0].height for row in rows) + GAP * (len(rows) - 1)) / 2
    for row in rows:
        middle = top + row[0].height
        for part in row:
            distance = signed_distance(part, x / scale - part.x, y / scale - middle) * scale
            canvas = paint(canvas, saturated_color(uniform), distance)
        top = middle + row[0].height + GAP
    light = 1 + gradient(uniform, x, y) * uniform(0, 0.25)
    canvas = canvas * light + uniform(-0.06, 0.06, 3, SIDE, SIDE)
    return (canvas.clamp(0, 1) * 255 + 0.5).floor().byte()


def rotate(x: Tensor, y: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate points by an angle, given the tangent of half the angle.

    Sine and cosine are rational functions of this tangent, so float64 defines them exactly.
    """
    square = tangent * tangent
    cos, sin = (1 - square) / (1 + square), 2 * tangent / (1 + square)
    return cos * x - sin * y, sin * x + cos * y


def signed_distance(part: Part, x: Tensor, y: Tensor) -> Tensor:
    """Return the distance of points from a part that is centred at (0, 0); negative inside."""
    if part.kind == "disc":
        return (x * x + y * y).sqrt() - part.width
    if part.kind == "box":
        return torch.maximum(x.abs() - part.width, y.abs() - part.height)
    rise = 2 * part.height / part.width
    sides = (rise * x.abs() - (y + part.height)) / (1 + rise * rise) ** 0.5
    return torch.maximum(sides, y - part.height)


def paint(canvas: Tensor, color: Tensor, distance: Tensor) -> Tensor:
    """Paint the canvas where the distance is negative, with a soft edge of one pixel."""
    return canvas + (color - canvas) * (0.5 - distance).clamp(0, 1)


def saturated_color(uniform: Uniform) -> Tensor:
    """Draw a saturated colour: one channel high, one low, one uniform."""
    level = torch.cat([uniform(0.8, 1.0), uniform(0.0, 0.25), uniform(0.0, 1.0)], dim=1)
    return level.gather(1, uniform(0, 1, 3).argsort(dim=1))


def gradient(uniform: Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Draw a linear gradient in a random direction: 0 in the middle, about -1 .. 1 at the edges."""
    return (uniform(-1, 1) * x + uniform(-1, 1) * y) / (SIDE / 2)


def interpolate(grid: Tensor, dim: int) -> Tensor:
    """Interpolate linearly along ``dim``, from the points of a grid to SIDE pixels."""
    cells = grid.shape[dim] - 1
    place = (torch.arange(SIDE, dtype=torch.float64) + 0.5) * cells / SIDE
    left = place.floor()
    shape = [1] * grid.ndim
    shape[dim] = SIDE
    low, high = (grid.index_select(dim, index.long()) for index in (left, left + 1))
    return low + (high - low) * (place - left).view(shape)


def draw_background(uniform: Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Draw a muted colour with a gradient, a grating and noise at three scales."""
    color = uniform(0.3, 0.7) + uniform(-0.12, 0.12, 3)
    color = color + gradient(uniform, x, y) * uniform(-0.15, 0.15, 3)
    for cells, amplitude in ((3, 0.16), (8, 0.1), (16, 0.07)):
        grid = uniform(-amplitude, amplitude, 1, cells + 1, cells + 1)
        color = color + interpolate(interpolate(grid, 2), 3)
    across = x * uniform(-0.25, 0.25) + y * uniform(-0.25, 0.25) + uniform(0, 1)
    wave = 4 * (across - across.floor() - 0.5).abs() - 1
    return color + wave * uniform(-0.1, 0.12).clamp(min=0)


def add_distractors(canvas: Tensor, uniform: Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Add a small disc and a thin bar at random places.

    About half of the images get the disc, and about half get the bar.
    """
    kinds = (Part("disc", 1.6, 1.6), Part("box", 3.5, 0.7))
    for part in kinds:
        here_x, here_y = rotate(x - uniform(-15, 15), y - uniform(-15, 15), uniform(-1, 1))
        absent = uniform(-1, 1).clamp(min=0) * 1e9  # half of the images paint nothing
        canvas = paint(
            canvas, saturated_color(uniform), signed_distance(part, here_x, here_y) + absent
        )
    return canvas
