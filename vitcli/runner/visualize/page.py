"""The page with the figures of one or more runs.

The page is one file. It needs no network and runs only the explorer's script.
"""

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from vitcli.runner.figure_style import STYLE
from vitcli.runner.visualize.claims import describe_untrained, full_verdict
from vitcli.runner.visualize.explorer.page import fragment
from vitcli.runner.visualize.render import VisualizedRun


def html(done: Sequence[VisualizedRun]) -> bytes:
    """Return the page. It embeds the figures as PNG, also if their files are SVG or PDF."""
    sections = [_section(each) for each in done]
    explorers = [each["explorer"] for each in sections if each["explorer"]]
    text = (
        _environment()
        .get_template("index.html")
        .render(sections=sections, code=explorers[0] if explorers else None)
    )
    return text.encode()


def _section(each: VisualizedRun) -> dict[str, Any]:
    headline, score = each.tested.task.headline, each.tested.recorded_score
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
                "source": _data_uri(each.pngs[name]),
                "width": shown_width(each.pngs[name]),
                "numbers": figure.numbers,
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


def _data_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vitcli.runner.visualize"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "untrained": describe_untrained,
        "verdict": full_verdict,
        "percent": lambda share: f"{100 * share:.2f}",
        "decimals": lambda value: "" if value is None else f"{value:.2f}",
        "thousandths": lambda value: "" if value is None else f"{value:.3f}",
        "plus_two": lambda pair: f"{pair[0]:z.2f} ± {pair[1]:.2f}",
        "plus": lambda pair: f"{pair[0]:+.3f} ± {pair[1]:.3f}" if pair[1] is not None else "",
    }
    return environment
