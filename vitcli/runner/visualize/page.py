"""The page with the figures of one or more runs.

The page is one file. It needs no network and runs only the explorer's script.
"""

import io
from collections.abc import Sequence
from typing import Any

from PIL import Image

from vitcli.runner import pages
from vitcli.runner.figure_style import STYLE
from vitcli.runner.visualize.explorer.page import fragment
from vitcli.runner.visualize.render import VisualizedRun
from vitcli.runner.visualize.tables import tables_of


def html(done: Sequence[VisualizedRun]) -> bytes:
    """Return the page. It embeds the figures as PNG, also if their files are SVG or PDF."""
    sections = [_section(each) for each in done]
    explorers = [each["explorer"] for each in sections if each["explorer"]]
    code = explorers[0] if explorers else None
    return pages.render("figures.html", sections=sections, code=code).encode()


def _section(each: VisualizedRun) -> dict[str, Any]:
    headline, score = each.tested.spec.task.row.headline, each.tested.recorded_score
    return {
        "name": each.tested.name,
        "data": each.numbers["data"],
        "score": "" if score is None else f"{headline.label} {headline.text(score)}",
        "num_test": each.tested.num_scored,
        "figures": [
            {
                "name": name,
                "title": figure.title,
                "caption": figure.caption,
                "details": figure.details,
                "source": pages.data_uri("png", each.pngs[name]),
                "width": shown_width(each.pngs[name]),
                "tables": tables_of(name, figure.numbers or {}),
            }
            for name, figure in each.figures.items()
        ],
        "num_scenes": len(each.scenes),
        "explorer": fragment(each.scenes) if each.scenes else None,
        "skipped": each.skipped,
    }


def shown_width(png: bytes) -> int:
    """Return the width of a figure in CSS pixels, 96 per inch, at which its text can be read."""
    with Image.open(io.BytesIO(png)) as picture:
        return round(96 * picture.width / STYLE["savefig.dpi"])
