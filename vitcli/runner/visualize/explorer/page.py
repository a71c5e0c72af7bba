"""The explorer: an interactive page about a model's attention, in one file without network access.

The page holds its numbers as data that is never run as code, and names are escaped. A
content-security policy allows one style and one script, both by their hash. The attributes of the
``.explorer`` element show the page's state; the head of explorer.js lists them.

Axes: L layers, h heads, N tokens (prefix first), Q queries. The queries are the tokens, and the
read-out for a model without CLS.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import colormaps
from PIL import Image

from vitcli.core.spec.slots import POOLS
from vitcli.runner.figure_style import CMAP
from vitcli.runner.files import policy_hash
from vitcli.runner.visualize.explorer.scene import Scene

MAX_SHOWN = 640
"""Largest longer side of an embedded picture, in pixels."""
LOSSLESS = 256
"""Largest longer side of a picture that is embedded as PNG; a larger one is embedded as JPEG."""
SCRIPTS = ("numbers.js", "drawing.js", "parts.js", "explorer.js")
"""The files of the page's script, in the order in which they are joined."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """First view of an explorer."""

    layer: int
    """One of the scene's layers, counted from 1."""
    head: int | None = None
    """A head, counted from 1. Default: the mean over heads."""
    rollout: bool = False
    """Show the rollout up to the layer instead of the layer's own attention."""
    query: tuple[int, int] | None = None
    """(row, column) of a patch, from 0. Default: the read-out."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """Explorer to embed in a page.

    The page holds ``style`` once in its head, ``markup`` at the explorer's place, and ``script``
    once after the last markup. All three must be unchanged, because the page's policy names their
    hashes: ``script-src <script_hash>; style-src <style_hash>; img-src data:``.
    """

    markup: Markup
    style: Markup
    script: Markup
    style_hash: str
    """In the form of a policy: ``'sha256-...'``."""
    script_hash: str


def page(scenes: Sequence[Scene], opening: Opening | None = None, *, about: str = "") -> bytes:
    """Return a whole page; ``about`` is the line below the explorer."""
    text = (
        _environment()
        .get_template("explorer.html")
        .render(explorer=fragment(scenes, opening, keys="page"), title=scenes[0].name, about=about)
    )
    return text.encode()


def fragment(
    scenes: Sequence[Scene], opening: Opening | None = None, *, keys: str = "inside"
) -> Fragment:
    """Return an explorer of scenes. Default view: the last layer and the read-out.

    With ``keys="page"`` the explorer handles the keys of the whole page, with ``"inside"`` only
    while it has the focus.
    """
    environment = _environment()
    style = Markup(_source(environment, "explorer.css"))
    script = Markup("\n".join(_source(environment, name) for name in SCRIPTS))
    opening = opening or Opening(layer=scenes[0].layers[-1])
    data = {
        "colours": _base64(_colours()),
        "opening": vars(opening),
        "scenes": [pack_scene(scene) for scene in scenes],
    }
    markup = environment.get_template("fragment.html").render(data=data, keys=keys)
    return Fragment(
        markup=Markup(markup),
        style=style,
        script=script,
        style_hash=policy_hash(style),
        script_hash=policy_hash(script),
    )


def pack_scene(scene: Scene) -> dict[str, Any]:
    """Return a scene as the script reads it. The box is in shares of the picture's sides."""
    attention, rollout = (_with_read_out(scene, x) for x in (scene.attention, scene.rollout))
    height, width = scene.picture.shape[:2]
    top, left, tall, wide = scene.box
    attention_bytes, maxima = quantise(attention)
    rollout_bytes, rollout_maxima = quantise(rollout)
    return {
        "name": scene.name,
        "picture": _picture_uri(scene.picture),
        "size": [width, height],
        "box": [left / width, top / height, wide / width, tall / height],
        "grid": scene.grid,
        "prefix": scene.prefix,
        "layers": scene.layers,
        "heads": scene.attention.shape[1],
        "readOut": 0 if POOLS[scene.pool].has_cls_token else scene.attention.shape[-1],
        "pool": scene.pool,
        "reader": POOLS[scene.pool].reads,
        "reading": [round(float(share), 6) for share in scene.reading],
        "classes": scene.classes,
        "attention": _base64(attention_bytes),
        "maxima": _base64(maxima),
        "rollout": _base64(rollout_bytes),
        "rolloutMaxima": _base64(rollout_maxima),
    }


def quantise(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (..., N) as uint8 and their maxima (...): a value is (byte / 255)^2 * maximum.

    The bytes are steps of the square root, so that small values keep their size. The error of a
    value is at most sqrt(value * maximum) / 255. With equal steps, all values below maximum / 510
    would become zero.
    """
    maxima = rows.max(-1).astype("<f4")
    shares = rows / np.where(maxima > 0, maxima, 1)[..., None]
    return np.rint(255 * np.sqrt(shares)).astype(np.uint8), maxima


def _with_read_out(scene: Scene, matrices: np.ndarray) -> np.ndarray:
    """Append the read-out's row, the weighted mean of its tokens' rows: (..., N, N) -> (..., Q, N).

    With CLS the read-out is a token, and nothing is appended.
    """
    if POOLS[scene.pool].has_cls_token:
        return matrices
    return np.concatenate([matrices, scene.reading @ matrices[..., None, :, :]], axis=-2)


def _colours() -> np.ndarray:
    """Return the colour map in 256 steps, (256, 3)."""
    return (255 * colormaps[CMAP](np.arange(256))[:, :3]).round().astype(np.uint8)


def _picture_uri(picture: np.ndarray) -> str:
    image = Image.fromarray(picture)
    image.thumbnail((MAX_SHOWN, MAX_SHOWN), Image.Resampling.LANCZOS)
    kind = "png" if max(image.size) <= LOSSLESS else "jpeg"
    with io.BytesIO() as file:
        image.save(file, kind, quality=88, optimize=True)
        return f"data:image/{kind};base64,{_base64(file.getvalue())}"


def _base64(content: np.ndarray | bytes) -> str:
    raw = content if isinstance(content, bytes) else np.ascontiguousarray(content).tobytes()
    return base64.b64encode(raw).decode()


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("vitcli.runner.visualize.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
    )
