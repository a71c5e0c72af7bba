"""What the small figures of the page show; ../templates/drawings.html draws them as inline SVG."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitcli.plugins.explain.subject import Subject, png
from vitcli.runner.report.pages import data_uri

Drawing = dict[str, Any]
"""The name of a macro (``kind``), and its values."""
INK = (30, 136, 205)
"""Colour of a heat map; its opacity is the value. It is visible on white and on black."""


def heat(values: Tensor, kind: str = "heat") -> Drawing:
    """Draw a matrix (M, N), a pixel a value, the largest darkest; kind ``row`` is a wide strip."""
    colours = torch.tensor(INK, dtype=torch.uint8).expand(*values.shape, 3)
    opacity = (255 * values / values.max()).round().to(torch.uint8)
    return {
        "kind": kind,
        "source": data_uri("png", png(torch.cat([colours, opacity[..., None]], -1))),
    }


def photo(subject: Subject, pixels: Tensor | None = None, **marks: Any) -> Drawing:
    """Draw the picture of the subject, or other pixels (3, H, W); a patch has the side 1."""
    rows, columns = subject.model.grid_size
    shown = subject.pixels if pixels is None else pixels
    source = data_uri("png", png(shown.permute(1, 2, 0).contiguous()))
    plain = {"shades": (), "has_grid": False, "frame": None, "edges": ()}
    return {"kind": "photo", "source": source, "rows": rows, "columns": columns} | plain | marks


def spotlight(subject: Subject, weights: Tensor, query: int | None = None) -> Drawing:
    """Draw the picture, dark where a token's weights (N,) are small; the token has a frame."""
    patches = weights[subject.model.num_prefix_tokens :]
    shades = 0.82 * (1 - patches / patches.max())
    frame = None if query is None else subject.place(query)
    return photo(subject, shades=shades.tolist(), frame=frame)


def arrows(subject: Subject, edges: Sequence[dict[str, Any]]) -> Drawing:
    """Draw an arrow from key to query for each edge of two tokens that have a place."""
    largest = max(edge["weight"] for edge in edges)
    ends = [
        (subject.place(edge["key"]), subject.place(edge["query"]), edge["weight"] / largest)
        for edge in edges
    ]
    return photo(subject, edges=[(key, query, w) for key, query, w in ends if key and query])


def strip(subject: Subject, count: int) -> Drawing:
    side = subject.model.spec.patch_size
    cut = subject.pixels.unfold(1, side, side).unfold(2, side, side).flatten(1, 2)  # (3, N, P, P)
    opaque = torch.cat([cut, torch.full_like(cut[:1], 255)])[:, :count]
    with_gap = torch.nn.functional.pad(opaque, (0, max(1, side // 4)))
    row = with_gap.permute(2, 1, 3, 0).flatten(1, 2)[:, : -max(1, side // 4)]
    return {"kind": "strip", "source": data_uri("png", png(row.contiguous()))}


def bars(rows: Sequence[tuple[str, float, str]], limit: float | None = None) -> Drawing:
    """Draw horizontal bars; a full bar has the length ``limit``, by default the longest."""
    whole = limit or max(value for _, value, _ in rows) or 1.0
    return {"kind": "bars", "rows": [(name, value / whole, text) for name, value, text in rows]}
