"""The embedded data set: ten classes of small objects, computed without a download.

The ten classes are five pairs. Both classes of a pair consist of the same parts, stacked in the
opposite order. The gap between the parts is more than half of a 4-pixel patch. Therefore the
content of a patch shows the pair, and only the positions of the patches show the class. A model
without positions reaches an accuracy of about 50 %.

The bytes are the same on every machine, for the reasons in core/generated/drawing.py.
Axes: n images of a chunk, H W pixels; x to the right, y down, in pixels.
"""

from torch import Generator, Tensor

from vitcli.core.generated import drawing

GAP = 3.0
"""Pixels between two rows of parts, before scaling."""

Row = tuple[drawing.Part, ...]
"""Parts side by side, all of the same height."""

PAIRS: dict[tuple[str, str], tuple[Row, Row]] = {
    ("tree", "broom"): ((drawing.Part("triangle", 6.0, 4.5),), (drawing.Part("box", 1.4, 4.0),)),
    ("snowman", "bulb"): ((drawing.Part("disc", 3.0, 3.0),), (drawing.Part("disc", 5.2, 5.2),)),
    ("hat", "table"): ((drawing.Part("box", 3.4, 3.8),), (drawing.Part("box", 7.5, 1.3),)),
    ("cart", "frog"): (
        (drawing.Part("box", 7.0, 3.4),),
        (drawing.Part("disc", 2.3, 2.3, -4.2), drawing.Part("disc", 2.3, 2.3, 4.2)),
    ),
    ("pawn", "gnome"): ((drawing.Part("disc", 3.6, 3.6),), (drawing.Part("triangle", 4.6, 4.8),)),
}
"""Names of a pair -> the rows of the first class, from top to bottom. The second class has the same
rows from bottom to top."""

CLASSES: dict[str, tuple[Row, ...]] = {
    name: order
    for names, rows in PAIRS.items()
    for name, order in zip(names, (rows, rows[::-1]), strict=True)
}


def draw(rows: tuple[Row, ...], num_images: int, generator: Generator) -> Tensor:
    """Draw images of one class: (n, 3, H, W) uint8."""
    uniform = drawing.Uniform(num_images, generator)
    x, y = drawing.pixel_axes()
    canvas = drawing.draw_background(uniform, x, y)
    canvas = drawing.add_distractors(canvas, uniform, x, y)
    scale = uniform(1.0, 1.3)
    x, y = drawing.rotate(x - uniform(-4, 4), y - uniform(-3, 3), uniform(-0.1, 0.1))
    y = y + uniform(-0.12, 0.12) * x
    top = -(sum(2 * row[0].height for row in rows) + GAP * (len(rows) - 1)) / 2
    for row in rows:
        middle = top + row[0].height
        for part in row:
            distance = drawing.signed_distance(part, x / scale - part.x, y / scale - middle) * scale
            canvas = drawing.paint(canvas, drawing.saturated_color(uniform), distance)
        top = middle + row[0].height + GAP
    return drawing.finish(canvas, uniform, x, y)
