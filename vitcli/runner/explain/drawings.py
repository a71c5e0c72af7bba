"""Small figures of the page: inline SVG that follows the page's colours, light and dark."""

import base64
import io
from collections.abc import Sequence

import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from vitcli.runner.explain.subject import Subject

CELL = 10
"""Side of a patch in SVG units."""
INK = (30, 136, 205)
"""Colour of a heat map; its opacity is the value. It is visible on white and on black."""
BAR_WIDTH, LINE = 340, 22
NOTHING = Markup("")


def embedded(pixels: Tensor) -> str:
    """Return (H, W, 3 or 4) uint8 as the address of an embedded PNG picture."""
    with io.BytesIO() as file:
        Image.fromarray(pixels.numpy()).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def heat(values: Tensor, label: str) -> Markup:
    """Return a matrix (M, N) as a picture with one pixel for each value; the largest is darkest."""
    shares = values / values.max()
    colours = torch.tensor(INK, dtype=torch.uint8).expand(*values.shape, 3)
    opacity = (255 * shares).round().to(torch.uint8)
    source = embedded(torch.cat([colours, opacity[..., None]], -1))
    return Markup('<img class="heat" src="{}" alt="{}">').format(source, label)


def photo(
    subject: Subject, inside: Markup = NOTHING, *, label: str, pixels: Tensor | None = None
) -> Markup:
    """Return a picture as SVG with drawings on it; a patch has the side ``CELL``.

    ``pixels`` (3, H, W) replaces the pixels of the subject.
    """
    shown = subject.pixels if pixels is None else pixels
    rows, columns = subject.model.grid_size
    size = {"width": columns * CELL, "height": rows * CELL}
    return Markup(
        '<svg class="photo" viewBox="-0.5 -0.5 {w} {h}" role="img" aria-label="{label}">'
        '<image href="{source}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        "{inside}</svg>"
    ).format(
        w=size["width"] + 1,
        h=size["height"] + 1,
        label=label,
        source=embedded(shown.permute(1, 2, 0).contiguous()),
        inside=inside,
        **size,
    )


def _square(place: tuple[int, int], style: str) -> Markup:
    row, column = place
    return Markup('<rect x="{}" y="{}" width="{side}" height="{side}" class="{style}"/>').format(
        column * CELL, row * CELL, side=CELL, style=style
    )


def spotlight(subject: Subject, weights: Tensor, query: int, label: str) -> Markup:
    """Return the picture, dark where a token's weights (N,) are small; the token has a frame."""
    patches = weights[subject.model.num_prefix_tokens :]
    shade = 0.82 * (1 - patches / patches.max())
    squares = [
        Markup('<rect x="{}" y="{}" width="{side}" height="{side}" opacity="{:.2f}"/>').format(
            i % subject.model.grid_size[1] * CELL,
            i // subject.model.grid_size[1] * CELL,
            value,
            side=CELL,
        )
        for i, value in enumerate(shade.tolist())
    ]
    place = subject.place(query)
    frame = [_square(place, "frame")] if place else []
    return photo(subject, NOTHING.join([*squares, *frame]), label=label)


def grid(subject: Subject, label: str) -> Markup:
    """Return the picture with the borders of its patches."""
    rows, columns = subject.model.grid_size
    squares = [_square((i // columns, i % columns), "cell") for i in range(rows * columns)]
    return photo(subject, NOTHING.join(squares), label=label)


def edges(subject: Subject, found: Sequence[tuple[int, int, float]], label: str) -> Markup:
    """Return the picture with an arrow for each edge (query, key, weight), from key to query.

    Edges of tokens without a place in the picture are left out.
    """
    largest = max(weight for *_, weight in found)
    arrows = []
    for query, key, weight in found:
        start, end = subject.place(key), subject.place(query)
        if start is None or end is None:
            continue
        points = [(place + 0.5) * CELL for place in (start[1], start[0], end[1], end[0])]
        arrows.append(
            Markup(
                '<circle cx="{0:.1f}" cy="{1:.1f}" r="1.6" class="start"/>'
                '<line x1="{0:.1f}" y1="{1:.1f}" x2="{2:.1f}" y2="{3:.1f}" class="edge"'
                ' opacity="{4:.2f}" marker-end="url(#tip)"/>'
            ).format(*points, 0.35 + 0.65 * weight / largest)
        )
    tip = Markup(
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="4.5"'
        ' markerHeight="4.5" orient="auto"><path d="M0 0L6 3L0 6z" class="tip"/></marker></defs>'
    )
    return photo(subject, tip + NOTHING.join(arrows), label=label)


def patch_strip(subject: Subject, count: int, label: str) -> Markup:
    """Return the first patches of the picture side by side, in reading order."""
    side = subject.model.spec.patch_size
    cut = subject.pixels.unfold(1, side, side).unfold(2, side, side).flatten(1, 2)  # (3, P, p, p)
    shown = cut[:, :count]
    gap = max(1, side // 4)
    strip = torch.zeros(side, shown.shape[1] * (side + gap) - gap, 4, dtype=torch.uint8)
    for i, patch in enumerate(shown.unbind(1)):
        part = strip[:, i * (side + gap) : i * (side + gap) + side]
        part[..., :3], part[..., 3] = patch.permute(1, 2, 0), 255
    return Markup('<img class="strip" src="{}" alt="{}">').format(embedded(strip), label)


def row_strip(weights: Tensor, label: str) -> Markup:
    """Return a row of weights (N,) as a strip of cells; the largest weight is darkest."""
    return Markup('<div class="row">{}</div>').format(heat(weights[None], label))


def bars(rows: Sequence[tuple[str, float, str]], label: str, limit: float | None = None) -> Markup:
    """Return horizontal bars.

    Args:
        rows: Name, length and text of each bar.
        label: What the bars show, for readers who cannot see them.
        limit: Length of a full bar; by default the longest.
    """
    whole = limit or max(value for _, value, _ in rows) or 1.0
    lines = [
        Markup(
            '<text x="0" y="{y}" class="name">{name}</text>'
            '<rect x="96" y="{top}" width="{width:.1f}" height="13" class="bar"/>'
            '<text x="{end:.1f}" y="{y}">{text}</text>'
        ).format(
            y=i * LINE + 15,
            top=i * LINE + 4,
            name=name,
            width=max(0.5, 170 * value / whole),
            end=100 + max(0.5, 170 * value / whole),
            text=text,
        )
        for i, (name, value, text) in enumerate(rows)
    ]
    return Markup(
        '<svg class="bars" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>'
    ).format(BAR_WIDTH, len(rows) * LINE + 2, label, NOTHING.join(lines))
