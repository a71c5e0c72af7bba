"""Scenes as a page on which a person looks around, in one file without network.

The numbers travel as data that never runs, and names are escaped. A content-security policy
allows one style and one script, both by their hash. The page's state can be read, not written, from
the attributes of its ``.explorer`` element; the script's head lists them.

Axes: L layers, h heads, N tokens (prefix first), Q queries: the tokens, and the read-out where it
is no token.
"""

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import colormaps
from PIL import Image

from vitcli.runner.attn_map.overlay import CMAP
from vitcli.runner.visualize.explorer.scene import Scene

MAX_SHOWN = 640
"""Pixels of the longer side of an embedded picture."""
LOSSLESS = 256
"""Up to this longer side a picture is embedded as PNG, above it as JPEG."""
SCRIPTS = ("numbers.js", "drawing.js", "parts.js", "explorer.js")
"""One script: what is known, how it is drawn, what is made for a scene, what a person does."""
READERS = {
    "cls": "CLS, the read-out",
    "mean": "read-out, the mean of the patches",
    "seq": "read-out, a weighted mean of the patches",
}
"""What the classifier reads, as the page calls it."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What an explorer shows first."""

    layer: int
    """From 1 on, one of the scene's."""
    head: int | None = None
    """From 1 on; unless given, the mean over the heads."""
    rollout: bool = False
    """The rollout up to the layer, instead of the layer's own attention."""
    query: tuple[int, int] | None = None
    """(row, column) of a patch, from 0 on; unless given, what the classifier reads."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """An explorer to embed: ``style`` once in the page's head, ``markup`` where it belongs, and
    ``script`` once after the last markup, each unchanged, since the policy names their hashes:
    ``script-src <script_hash>; style-src <style_hash>; img-src data:``.
    """

    markup: Markup
    style: Markup
    script: Markup
    style_hash: str
    """As a policy quotes it: ``'sha256-...'``."""
    script_hash: str


def page(scenes: Sequence[Scene], opening: Opening | None = None, *, about: str = "") -> bytes:
    """A whole page; ``about`` says below it whose attention this is."""
    text = (
        _environment()
        .get_template("explorer.html")
        .render(explorer=fragment(scenes, opening, keys="page"), title=scenes[0].name, about=about)
    )
    return text.encode()


def fragment(
    scenes: Sequence[Scene], opening: Opening | None = None, *, keys: str = "inside"
) -> Fragment:
    """An explorer of these scenes; unless said, it opens with the last layer and the read-out.

    ``keys`` are heard on the whole ``page``, or only while the focus is ``inside``.
    """
    environment = _environment()
    style = Markup(_source(environment, "explorer.css"))
    script = Markup("\n".join(_source(environment, name) for name in SCRIPTS))
    opening = opening or Opening(layer=scenes[0].layers[-1])
    data = {
        "colours": _base64(_colours()),
        "opening": vars(opening),
        "scenes": [packed(scene) for scene in scenes],
    }
    markup = environment.get_template("fragment.html").render(data=data, keys=keys)
    return Fragment(
        markup=Markup(markup),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def packed(scene: Scene) -> dict[str, Any]:
    """A scene as the script reads it; the box is told in shares of the picture's sides."""
    attention, rollout = (_with_read_out(scene, x) for x in (scene.attention, scene.rollout))
    height, width = scene.picture.shape[:2]
    top, left, tall, wide = scene.box
    bytes_, maxima = quantised(attention)
    rollout_bytes, rollout_maxima = quantised(rollout)
    return {
        "name": scene.name,
        "picture": _picture_uri(scene.picture),
        "size": [width, height],
        "box": [left / width, top / height, wide / width, tall / height],
        "grid": scene.grid,
        "prefix": scene.prefix,
        "layers": scene.layers,
        "heads": scene.attention.shape[1],
        "readOut": 0 if scene.pool == "cls" else scene.attention.shape[-1],
        "pool": scene.pool,
        "reader": READERS[scene.pool],
        "reading": [round(float(share), 6) for share in scene.reading],
        "classes": scene.classes,
        "attention": _base64(bytes_),
        "maxima": _base64(maxima),
        "rollout": _base64(rollout_bytes),
        "rolloutMaxima": _base64(rollout_maxima),
    }


def quantised(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows (..., N) as uint8, and their maxima (...): a value is (byte / 255)^2 * maximum.

    By its square root, so that small shares keep their size: a value is off by no more than
    sqrt(value * maximum) / 255, where equal steps would turn all below maximum / 510 to zero.
    """
    maxima = rows.max(-1).astype("<f4")
    shares = rows / np.where(maxima > 0, maxima, 1)[..., None]
    return np.rint(255 * np.sqrt(shares)).astype(np.uint8), maxima


def _with_read_out(scene: Scene, matrices: np.ndarray) -> np.ndarray:
    """(..., N, N) -> (..., Q, N): what is read out attends as the tokens that it is made of."""
    if scene.pool == "cls":
        return matrices
    return np.concatenate([matrices, scene.reading @ matrices[..., None, :, :]], axis=-2)


def _colours() -> np.ndarray:
    """The colour map in 256 steps, (256, 3)."""
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


def _hash(source: str) -> str:
    return f"'sha256-{_base64(hashlib.sha256(source.encode()).digest())}'"


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("vitcli.runner.visualize.explorer"),
        autoescape=True,
        undefined=StrictUndefined,
    )
