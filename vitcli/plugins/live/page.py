"""The explorer: an interactive page about a model's attention, in one file without network access.

The page holds its numbers as data that is never run as code, and names are escaped. A
content-security policy allows one style and one script, both by their hash. The attributes of the
``.explorer`` element show the page's state; the head of explorer.js lists them.

Axes: H W pixels of the picture, gh gw patch grid, L layers, h heads, N tokens (prefix first), Q
queries. The queries are the tokens, and the read-out if it is not CLS alone.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from matplotlib import colormaps
from torch import Tensor

from vitcli.core.inspect.maps import require_all_stated, rollouts
from vitcli.core.models.image_model import MappedModel
from vitcli.core.spec.slots import POOLS
from vitcli.runner.errors import InputError
from vitcli.runner.figure_style import CMAP
from vitcli.runner.files import policy_hash
from vitcli.runner.report import pages

NUM_CLASSES = 5


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Picture with the model's prediction and the attention of every token."""

    name: str
    picture: np.ndarray
    """(H, W, 3) uint8, as the page shows it."""
    box: tuple[int, int, int, int]
    """The part of the picture that the model gets: top, left, height, width."""
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    layers: tuple[int, ...]
    """The layers in ``attention`` and ``rollout``, counted from 1."""
    attention: np.ndarray
    """(L, h, N, N): a row is a query, a column is a key; each row sums to 1."""
    rollout: np.ndarray
    """(L, N, N): attention rollout from the input to each layer; each row sums to 1."""
    pool: str
    """The pooling before the classifier: cls, mean or seq."""
    reader: str
    reading: np.ndarray
    """(N,): the weight of each token in the pooling; sums to 1."""
    classes: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, likeliest first."""

    @property
    def reads_cls(self) -> bool:
        """Return whether the classifier reads CLS alone, so that a token is the read-out."""
        return POOLS[self.pool].has_cls_token and bool(self.reading[0] == 1)


@torch.no_grad()
def make_scene(
    model: MappedModel,
    images: Tensor,
    *,
    name: str,
    picture: np.ndarray,
    box: tuple[int, int, int, int],
    class_names: Sequence[str],
    temperature: float,
    layers: Sequence[int] | None = None,
) -> Scene:
    """Run the model once on its input (1, C, H, W) and return the scene; layers count from 0."""
    require_all_stated(model, images)
    logits, weights = model.forward_with_weights(images)
    chosen = range(len(model.blocks)) if layers is None else layers
    through = list(rollouts(weights.values(), residual=model.spec.has_residual))
    attention = torch.stack([weights[i][0] for i in chosen])
    if not attention.isfinite().all():
        raise InputError(f"{name}: the model's attention to this picture is not finite")
    shares, indices = (logits[0] / temperature).softmax(-1).topk(min(NUM_CLASSES, len(class_names)))
    best = zip(indices.tolist(), shares.tolist(), strict=True)
    reader = POOLS[model.pool_name].reads
    if model.second_reader is not None:
        first = "CLS" if model.cls_token is not None else reader.removeprefix("read-out, ")
        reader = f"read-out, half {first}, half the {model.second_reader} token"
    return Scene(
        name=name,
        picture=picture,
        box=box,
        grid=model.grid_size,
        prefix=prefix_names(model),
        layers=tuple(i + 1 for i in chosen),
        attention=as_array(attention),
        rollout=as_array(torch.stack([through[i][0] for i in chosen])),
        pool=model.pool_name,
        reader=reader,
        reading=as_array(model.pool_weights(images)[0]),
        classes=tuple((class_names[i], share) for i, share in best),
    )


def prefix_names(model: MappedModel) -> tuple[str, ...]:
    """Return the names of the prefix tokens: ``CLS``, ``register 1`` and so on."""
    read = [name for name in (model.cls_token is not None and "CLS", model.second_reader) if name]
    registers = range(1, model.num_prefix_tokens - len(read) + 1)
    return (*read, *(f"register {number}" for number in registers))


def as_array(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.float().cpu())


SCRIPTS = ("numbers.js", "drawing.js", "parts.js", "explorer.js", "start.js")
"""The files of the page's script, in the order in which they are joined."""


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """Explorer to embed in a page.

    The page holds ``style`` once in its head, ``markup`` at the explorer's place, and ``script``
    once after the last markup. All three must be unchanged, because the page's policy names their
    hashes, of ``policy_hash``: ``script-src 'sha256-...'; style-src 'sha256-...'; img-src data:``.
    """

    markup: Markup
    style: Markup
    script: Markup


def page(scenes: Sequence[Scene], *, about: str = "") -> bytes:
    explorer = fragment(scenes, keys="page")
    return pages.render(
        f"{__package__}:explorer.html",
        explorer=explorer,
        style_hash=policy_hash(explorer.style),
        script_hash=policy_hash(explorer.script),
        title=scenes[0].name,
        about=about,
    ).encode()


def fragment(scenes: Sequence[Scene], *, keys: str = "inside") -> Fragment:
    """Return an explorer; with ``keys="inside"`` it hears keys only while it has the focus."""
    colours = (255 * colormaps[CMAP](np.arange(256))[:, :3]).round().astype(np.uint8)
    data = {
        "colours": to_base64(colours),
        "scenes": [pack_scene(scene) for scene in scenes],
    }
    return Fragment(
        markup=Markup(pages.render(f"{__package__}:fragment.html", data=data, keys=keys)),
        style=pages.source(f"{__package__}:explorer.css"),
        script=pages.sources(*(f"{__package__}:{name}" for name in SCRIPTS)),
    )


def pack_scene(scene: Scene) -> dict[str, Any]:
    """Return a scene as the script reads it. The box is in shares of the picture's sides."""
    attention, rollout = (_with_read_out(scene, x) for x in (scene.attention, scene.rollout))
    attention_bytes, maxima = quantise(attention)
    rollout_bytes, rollout_maxima = quantise(rollout)
    height, width = scene.picture.shape[:2]
    top, left, tall, wide = scene.box
    return {
        "name": scene.name,
        "picture": pages.picture_uri(scene.picture),
        "size": [width, height],
        "box": [left / width, top / height, wide / width, tall / height],
        "grid": scene.grid,
        "prefix": scene.prefix,
        "layers": scene.layers,
        "heads": scene.attention.shape[1],
        "readOut": 0 if scene.reads_cls else scene.attention.shape[-1],
        "pool": scene.pool,
        "reader": scene.reader,
        "reading": [round(float(share), 6) for share in scene.reading],
        "classes": scene.classes,
        "attention": to_base64(attention_bytes),
        "maxima": to_base64(maxima),
        "rollout": to_base64(rollout_bytes),
        "rolloutMaxima": to_base64(rollout_maxima),
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
    """Append the weighted mean of the tokens if it is the read-out: (..., N, N) -> (..., Q, N)."""
    if scene.reads_cls:
        return matrices
    return np.concatenate([matrices, scene.reading @ matrices[..., None, :, :]], axis=-2)


def to_base64(content: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(content).tobytes()).decode()
