"""HTML pages: each one file without network, whose values are escaped unless ``Markup``.

A template is a file in ``vitcli/runner/templates``, such as ``report.html``, or in the folder
``templates`` of another package, such as ``vitcli.plugins.page:runs.html``.
"""

import base64
import io
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from PIL import Image

from vitcli.runner.report.tables import Table, html_text, latex_text, to_ascii
from vitcli.runner.text import capitalize, quantity, rough_duration, signed

if TYPE_CHECKING:
    import numpy as np

MAX_SHOWN = 640
"""Largest longer side of an embedded picture, in pixels."""
LOSSLESS = 256
"""Largest longer side of a picture that is embedded as PNG; a larger one is embedded as JPEG."""


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def source(name: str) -> Markup:
    return Markup(_text_of(name))


def sources(*names: str) -> Markup:
    return Markup("\n").join(map(source, names))


def data_uri(kind: str, content: bytes) -> str:
    """Return a picture to embed; ``kind`` is such as ``png`` or ``svg+xml``."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def picture_uri(picture: "np.ndarray", longest: int = MAX_SHOWN) -> str:
    """Return a picture (H, W, 3) as a data URI, with sides of at most ``longest`` pixels."""
    image = Image.fromarray(picture)
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    kind = "png" if max(image.size) <= LOSSLESS else "jpeg"
    with io.BytesIO() as file:
        image.save(file, kind, quality=88, optimize=True)
        return data_uri(kind, file.getvalue())


def embedded_figures(
    figures: Mapping[str, bytes], captions: Mapping[str, str], describe: Callable[[str], str]
) -> list[dict[str, str]]:
    return [
        {
            "source": data_uri("svg+xml", figures[f"{name}.svg"]),
            "alt": describe(name),
            "caption": caption,
        }
        for name, caption in captions.items()
        if f"{name}.svg" in figures
    ]


def decimals(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def to_html(table: Table) -> Markup:
    return Markup(render("table.html", table=table))


def to_latex(table: Table) -> str:
    """Return a ``table`` environment for ``\\usepackage{booktabs,graphicx}``.

    It is scaled down to the width of its lines if it is wider. The notes are comments below it.
    """
    label = re.sub(r"[^A-Za-z0-9]+", "-", to_ascii(table.name)).strip("-")
    return render("table.tex", table=table, label=label)


def stacked(header: str) -> list[str]:
    """Return a header in short lines; a sign of percent stays with its word."""
    lines = textwrap.wrap(header.replace(" %", "\0%"), 10, break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


def _text_of(template: str) -> str:
    package, _, file = template.rpartition(":")
    return files(package or "vitcli.runner").joinpath("templates", file).read_text("utf-8")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_text_of),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "table": to_html,
        "words": lambda text: Markup(html_text(text)),
        "latex": latex_text,
        "ascii": to_ascii,
        "stacked": stacked,
        "lines": partial(textwrap.wrap, break_long_words=False),
        "signed": signed,
        "decimals": decimals,
        "capitalized": capitalize,
        "duration": rough_duration,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
    }
    environment.globals["quantity"] = quantity
    return environment
