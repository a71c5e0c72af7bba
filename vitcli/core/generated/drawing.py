"""Drawing of generated data sets, bit by bit the same on every machine.

Only operations that float64 defines exactly are used: torch.rand, + - * /, sqrt, floor, minimum and
comparison. Transcendental functions, matrix products and sums are not used.
Axes: n images of a chunk, H W pixels; x to the right, y down, in pixels.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Generator, Tensor

from vitcli.core.data.source import Images

SIDE = 32
CHUNK = 50
"""Number of images drawn at a time. Another number would give other images, because it changes the
order of the random numbers."""
Parts = TypeVar("Parts")
"""What describes a class."""


class Part(NamedTuple):
    """Disc, box or triangle with its half width, half height and horizontal position in the row."""

    kind: str
    width: float
    height: float
    x: float = 0.0


def draw_splits(
    classes: Sequence[Parts],
    draw: Callable[[Parts, int, Generator], Tensor],
    num_train: int,
    num_test: int,
    seed: int = 0,
) -> tuple[Images, Images]:
    """Draw training and test images; ``draw`` draws images of one class."""
    return (
        draw_split(classes, draw, num_train, 2 * seed),
        draw_split(classes, draw, num_test, 2 * seed + 1),
    )


def draw_split(
    classes: Sequence[Parts],
    draw: Callable[[Parts, int, Generator], Tensor],
    num_images: int,
    seed: int,
) -> Images:
    """Draw images of all classes in random order; class counts differ by at most one image."""
    generator = Generator().manual_seed(seed)
    pixels, labels = [], []
    for label, parts in enumerate(classes):
        count = len(range(label, num_images, len(classes)))
        for start in range(0, count, CHUNK):
            pixels.append(draw(parts, min(CHUNK, count - start), generator))
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


def pixel_axes() -> tuple[Tensor, Tensor]:
    """Return x (1, W) and y (H, 1) of the pixels; (0, 0) is the centre of the image."""
    steps = torch.arange(SIDE, dtype=torch.float64) - (SIDE - 1) / 2
    return steps[None, :], steps[:, None]


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
    """Add a small disc to half of the images, and a thin bar to half, at random places."""
    kinds = (Part("disc", 1.6, 1.6), Part("box", 3.5, 0.7))
    for part in kinds:
        here_x, here_y = rotate(x - uniform(-15, 15), y - uniform(-15, 15), uniform(-1, 1))
        absent = uniform(-1, 1).clamp(min=0) * 1e9  # half of the images paint nothing
        canvas = paint(
            canvas, saturated_color(uniform), signed_distance(part, here_x, here_y) + absent
        )
    return canvas


def finish(canvas: Tensor, uniform: Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Add uneven light and noise, and round the colours to uint8."""
    light = 1 + gradient(uniform, x, y) * uniform(0, 0.25)
    canvas = canvas * light + uniform(-0.06, 0.06, 3, SIDE, SIDE)
    return (canvas.clamp(0, 1) * 255 + 0.5).floor().byte()
