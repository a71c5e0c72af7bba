"""The data set for tests of self-supervised learning: gratings in six classes, without a download.

A class is an orientation and a period. Phase, colours, light and noise are random, so neither
single pixels nor colours show the class. The mirror image of a grating has the same class.

The bytes are the same on every machine, for the reasons in core/generated/drawing.py: the waves
are triangles, because a sine is not exact.
Axes: n images of a chunk, H W pixels; x to the right, y down, in pixels.
"""

import math
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from vitcli.core.generated import drawing

TANGENTS = {"upright": 0.0, "diagonal": math.sqrt(2) - 1, "level": 1.0}
"""Orientation -> tangent of half the angle of the wave: 0, 45 and 90 degrees."""
PERIODS = {"fine": 4.5, "coarse": 11.0}
"""Distance of two crests in pixels."""


class Grating(NamedTuple):
    tangent: float
    period: float


CLASSES = {
    f"{width}-{orientation}": Grating(tangent, period)
    for orientation, tangent in TANGENTS.items()
    for width, period in PERIODS.items()
}


def draw(grating: Grating, num_images: int, generator: Generator) -> Tensor:
    """Draw images of one class: (n, 3, H, W) uint8."""
    uniform = drawing.Uniform(num_images, generator)
    x, y = drawing.pixel_axes()
    turned, _ = drawing.rotate(x, y, grating.tangent + uniform(-0.05, 0.05))
    turned = torch.where(uniform(-1, 1) > 0, turned, turned.flip(-1))
    place = turned / (grating.period * uniform(0.9, 1.1)) + uniform(0, 1)
    wave = 4 * (place - place.floor() - 0.5).abs() - 1
    canvas = uniform(0.35, 0.65, 3) + 0.75 * (drawing.saturated_color(uniform) - 0.5) * wave
    canvas = canvas + uniform(-0.15, 0.15, 3, drawing.SIDE, drawing.SIDE)
    return drawing.finish(canvas, uniform, x, y)
