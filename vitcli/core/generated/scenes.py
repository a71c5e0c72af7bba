"""The data set of the quickstart: ten two-dimensional arrangements, computed without a download.

The ten classes are five pairs. The classes of a pair consist of the same parts in other places.
Each row and each column of pixels holds as much of the parts in one class as in the other class, so
a profile along one axis shows the pair at best. The gap between parts is usually more than half of
a 4-pixel patch, so the content of patches shows the pair at best. The parts are more or less
saturated than the ground, and lighter or darker. Distractors hide the pair from simple statistics.

The bytes are the same on every machine, for the reasons in vitcli/core/generated/drawing.py.
Axes: n images of a chunk, H W pixels; x to the right, y down, in pixels.
"""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vitcli.core.generated import drawing


class Bar(NamedTuple):
    """Parallelogram with its half width and half height; ``lean`` moves its upper rows right."""

    width: float
    height: float
    lean: float = 0.0

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distance of points from a bar that is centred at (0, 0); negative inside."""
        sides = ((x + self.lean * y).abs() - self.width) / math.sqrt(1 + self.lean * self.lean)
        return torch.maximum(sides, y.abs() - self.height)


class Arc(NamedTuple):
    """Half or quarter of a ring: the part of the ring towards ``side``, such as (-1, 0) for left.

    ``radius`` is that of the middle of the ring, ``width`` half its width.
    """

    radius: float
    width: float
    side: tuple[int, int]

    def distance(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the distance of points from an arc whose box is centred at (0, 0)."""
        reach = (self.radius + self.width) / 2
        x, y = x + self.side[0] * reach, y + self.side[1] * reach
        ring = ((x * x + y * y).sqrt() - self.radius).abs() - self.width
        for towards, place in zip(self.side, (x, y), strict=True):
            if towards:
                ring = torch.maximum(ring, -towards * place)
        return ring


Part = Bar | Arc
Place = tuple[float, float]
"""x and y of the centre of a part."""
Placed = tuple[Part, Place]

BOX = Bar(2.2, 2.2)
TALL, TALL_BACK = Bar(1.25, 6.8, 0.35), Bar(1.25, 6.8, -0.35)
SHORT, SHORT_BACK = Bar(1.15, 3.3, 0.85), Bar(1.15, 3.3, -0.85)
PAIRS: dict[tuple[str, str], tuple[tuple[Part, Place, Place], ...]] = {
    ("tent", "funnel"): (
        (TALL, (-5.3, 0), (5.3, 0)),
        (TALL_BACK, (5.3, 0), (-5.3, 0)),
    ),
    ("diamond", "cross"): (
        (SHORT, (-5.6, -5), (5.6, -5)),
        (SHORT_BACK, (5.6, -5), (-5.6, -5)),
        (SHORT_BACK, (-5.6, 5), (5.6, 5)),
        (SHORT, (5.6, 5), (-5.6, 5)),
    ),
    ("upstairs", "downstairs"): (
        (BOX, (-7.6, 7.6), (-7.6, -7.6)),
        (BOX, (0, 0), (0, 0)),
        (BOX, (7.6, -7.6), (7.6, 7.6)),
    ),
    ("mushroom", "anchor"): (
        (Arc(4.9, 1.15, (-1, -1)), (-4.8, -4.8), (4.8, -4.8)),
        (Arc(4.9, 1.15, (1, -1)), (4.8, -4.8), (-4.8, -4.8)),
        (Arc(4.9, 1.15, (1, 1)), (-4.8, 4.8), (4.8, 4.8)),
        (Arc(4.9, 1.15, (-1, 1)), (4.8, 4.8), (-4.8, 4.8)),
    ),
    ("snake", "swan"): (
        (Arc(3.0, 1.3, (-1, 0)), (-3.2, -6), (-3.2, 6)),
        (Arc(3.0, 1.3, (1, 0)), (3.2, 6), (3.2, -6)),
    ),
}
"""Names of a pair -> its parts, each with its places in the first and in the second class."""

CLASSES: dict[str, tuple[Placed, ...]] = {
    name: tuple((part, places[index]) for part, *places in parts)
    for names, parts in PAIRS.items()
    for index, name in enumerate(names)
}


def draw(parts: tuple[Placed, ...], num_images: int, generator: Generator) -> Tensor:
    """Draw images of one class: (n, 3, H, W) uint8."""
    uniform = drawing.Uniform(num_images, generator)
    x, y = drawing.pixel_axes()
    canvas, color = draw_ground(uniform, x, y)
    across, up = uniform(0.85, 1.3), uniform(0.85, 1.3)
    x, y = drawing.rotate(x - uniform(-4, 4), y - uniform(-4, 4), uniform(-0.03, 0.03))
    growth = uniform(-0.3, 0.4)
    for part, (part_x, part_y) in parts:
        left, top = part_x + uniform(-0.5, 0.5), part_y + uniform(-0.5, 0.5)
        distance = part.distance(x / across - left, y / up - top)
        canvas = drawing.paint(canvas, color, distance - growth)
    return drawing.finish(canvas, uniform, x, y)


def draw_ground(uniform: drawing.Uniform, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Draw what is behind the parts; return it with a colour of the parts that contrasts with it.

    Half of the grounds are muted, with parts in a saturated colour. The others are saturated, with
    parts that are nearly black or nearly white.
    """
    is_vivid, tint = uniform(-1, 1) > 0, drawing.saturated_color(uniform)
    canvas = drawing.draw_background(uniform, x, y) + 0.6 * (tint - 0.5) * is_vivid
    canvas = add_tiles(canvas, uniform, x, y)
    canvas = add_horizon(canvas, uniform, x, y)
    for _ in range(3):
        canvas = drawing.add_distractors(canvas, uniform, x, y)
    color = torch.where(is_vivid, opposite_color(uniform, tint), drawing.saturated_color(uniform))
    return canvas, color


def add_horizon(canvas: Tensor, uniform: drawing.Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Shade everything on one side of a straight line, in half of the images."""
    _, depth = drawing.rotate(x - uniform(-8, 8), y - uniform(-8, 8), uniform(-3, 3))
    shade = uniform(-0.25, 0.25, 3) * (uniform(-1, 1) > 0)
    return canvas + shade * (0.5 - depth).clamp(0, 1)


def add_tiles(canvas: Tensor, uniform: drawing.Uniform, x: Tensor, y: Tensor) -> Tensor:
    """Shade every other square of a chessboard, in half of the images."""
    size = uniform(3, 9)
    x, y = drawing.rotate(x - uniform(-8, 8), y - uniform(-8, 8), uniform(-0.4, 0.4))
    odd = ((x / size).floor() + (y / size).floor()) / 2
    return canvas + uniform(-0.2, 0.2).clamp(min=0) * (odd - odd.floor() - 0.25) * 2


def opposite_color(uniform: drawing.Uniform, color: Tensor) -> Tensor:
    """Draw a colour that is nearly black on a light ground and nearly white on a dark ground."""
    red, green, blue = color.split(1, dim=1)
    is_light = 0.3 * red + 0.6 * green + 0.1 * blue > 0.5
    return uniform(-0.05, 0.05, 3) + torch.where(is_light, uniform(0.05, 0.15), uniform(0.85, 0.95))
