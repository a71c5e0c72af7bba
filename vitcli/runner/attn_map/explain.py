"""What a trained model says of a picture, and which parts of the picture that rests on.

Axes: H W pixels of the picture, gh gw patch grid, L layers, h heads, N tokens (prefix first).
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitcli.core.data.augment import normalize
from vitcli.core.inspect.grad_cam import feature_layer
from vitcli.core.inspect.maps import (
    METHODS,
    METHODS_BY_HEAD,
    MapRequest,
    check_layers,
    default_method,
)
from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.data.pictures import (
    FORMATS,
    decode,
    picture_bytes,
    quiet_pillow,
    shown_picture,
    software_of,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.experiment.config import did_you_mean

SOFTWARE = "vitcli attn-map"
"""What a figure that is a PNG file says of its origin."""
TAKES = {
    "cls": ("layer", "head", "query"),
    "rollout": ("layer", "query"),
    "grad-rollout": ("class", "query"),
    "gradcam": ("class", "layer"),
    "head": ("layer", "head", "query"),
    "raw": ("layer", "head"),
}
"""Which options mean something to a method."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
assert len(FORMATS) == len(SUFFIXES) - 1, "JPEG has two"


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One picture, what the model says it is, and its map."""

    path: str
    picture: np.ndarray
    """(H, W, 3) uint8, as it is shown."""
    box: tuple[int, int, int, int]
    """What the model saw of it: top, left, height, width."""
    fit: str
    batch: torch.Tensor
    """(1, C, H, W), normalised: what the model was given."""
    label: str
    probability: float
    """Of ``label``, the likeliest class."""
    asked: str
    """The class that the map is about; ``label`` unless another was asked for."""
    method: str
    layers: tuple[int, ...]
    """From 1 on; for Grad-CAM also 0, the embedded patches."""
    are_heads_averaged: bool
    """For ``head`` and ``raw``: one mean map instead of one a head; the others average anyway."""
    heads: tuple[int, ...]
    """From 1 on; what ``head`` and ``raw`` show side by side, and the others average."""
    maps: np.ndarray
    """(gh, gw); (L, h, gh, gw) for ``head``; (L, h, N, N) for ``raw``; not negative."""
    grid: tuple[int, int]
    num_prefix_tokens: int
    query: tuple[int, int] | None
    has_cls: bool


class Explainer:
    """A run's Vision Transformer, and how to ask where it looks."""

    def __init__(
        self,
        predictor: Predictor,
        *,
        method: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        average_heads: bool = False,
        query: tuple[float, float] | None = None,
        about: str | None = None,
        fit: str = "crop",
    ) -> None:
        """Check the question once, before any picture.

        Args:
            method: A row of ``METHODS`` or ``METHODS_BY_HEAD``; unless given, gradient rollout
                where a class is named, a patch's own attention where a place is, else what fits.
            layers: From 1 on, or from -1 backwards; unless given the last, all for ``head`` and
                ``raw``; for ``gradcam``, which takes one, the last whose patches are read out.
            heads: From 1 on; all unless given.
            average_heads: For ``head`` and ``raw``, which otherwise show each head by itself.
            query: x and y of a place, as shares (0 to 1) of what the model sees.
            about: The class to explain; the likeliest unless given.
            fit: How a picture of another shape is fitted, a row of ``FITS``.

        Raises:
            ConfigError: The question does not fit the model.
        """
        model, names = predictor.model, predictor.names
        if not isinstance(model, VisionTransformer):
            raise ConfigError(
                f"{predictor.run.name}: family {model.spec.family!r} {model.no_maps}; name a Vision"
                " Transformer with --run"
            )
        self.predictor, self.model = predictor, model
        self.method = method or _fitting_method(model, query, about)
        if about is not None and about not in names:
            some = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
            hint = did_you_mean(about, names)
            raise ConfigError(f"--class {about}: no such class{hint} (there are {some})")
        _refuse_unused(self.method, layer=layers, head=heads, query=query, **{"class": about})
        self.about, self.fit = about, fit
        self.heads = self._check_heads(heads)
        self.average_heads = average_heads and self.method in METHODS_BY_HEAD
        self.query = None if query is None else self._patch_at(query)
        self.layers = self._check_layers(layers)

    def _check_layers(self, layers: Sequence[int] | None) -> tuple[int, ...]:
        """From 0 on, as in ``Question``."""
        try:
            if self.method == "gradcam":
                if layers and len(layers) > 1:
                    raise ValueError("gradcam looks at one layer")
                return (feature_layer(self.model, layers[0] if layers else None) - 1,)
            if not len(self.model.blocks):
                raise ConfigError("the model has no layers, so nothing in it attends to anything")
            every = range(1, len(self.model.blocks) + 1)
            usual = every if self.method in METHODS_BY_HEAD else [-1]
            return check_layers(self.model, list(layers or usual))
        except ValueError as error:
            raise ConfigError(f"--layer: {error}") from error

    def _check_heads(self, heads: Sequence[int] | None) -> tuple[int, ...]:
        count = self.model.spec.num_heads
        for head in heads or ():
            if not 1 <= head <= count:
                raise ConfigError(f"--head {head} is out of range: the model has 1 to {count}")
        return tuple(head - 1 for head in heads or range(1, count + 1))

    def _patch_at(self, place: tuple[float, float]) -> tuple[int, int]:
        height, width = self.model.grid_size
        if not all(0 <= share <= 1 for share in place):
            raise ConfigError("--query wants x and y between 0 and 1, such as 0.5,0.25")
        x, y = place
        return min(height - 1, int(y * height)), min(width - 1, int(x * width))

    def look(self, path: str) -> Explanation:
        """Read a picture (``-`` is standard input), classify it and ask for its map.

        Raises:
            InputError: It cannot be read.
            ConfigError: The method has no meaning for this model.
        """
        content = picture_bytes(path)
        predictor = self.predictor
        with quiet_pillow():
            pixels = decode(content, path, predictor.size, predictor.in_chans, self.fit)
        picture, box = shown_picture(content, path, predictor.size, self.fit)
        data, device = predictor.spec.data, predictor.device
        mean, std = (torch.tensor(row, device=device) for row in (data.mean, data.std))
        batch = normalize(pixels[None].to(device), mean, std)
        with torch.no_grad():
            shares = self.model(batch).softmax(-1)[0]
        best = int(shares.argmax())
        asked = best if self.about is None else predictor.names.index(self.about)
        return Explanation(
            path=path,
            picture=picture,
            box=box,
            fit=self.fit,
            batch=batch,
            label=predictor.names[best],
            probability=shares[best].item(),
            asked=predictor.names[asked],
            method=self.method,
            layers=tuple(layer + 1 for layer in self.layers),
            heads=tuple(head + 1 for head in self.heads),
            are_heads_averaged=self.average_heads,
            maps=self._maps(batch, asked),
            grid=self.model.grid_size,
            num_prefix_tokens=self.model.num_prefix_tokens,
            query=self.query,
            has_cls=self.model.cls_token is not None,
        )

    def _maps(self, batch: torch.Tensor, asked: int) -> np.ndarray:
        ask = MapRequest(
            model=self.model,
            images=batch,
            layers=self.layers,
            heads=self.heads,
            query=self.query,
            classes=torch.tensor([asked], device=batch.device),
        )
        method = (METHODS | METHODS_BY_HEAD)[self.method]
        try:
            maps: np.ndarray = method(ask)[0].float().cpu().numpy()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return maps.mean(1, keepdims=True) if self.average_heads else maps


def _fitting_method(
    model: VisionTransformer, query: tuple[float, float] | None, about: str | None
) -> str:
    if about is not None:
        return "grad-rollout"
    return "cls" if query is not None else default_method(model)


def _refuse_unused(method: str, **given: object) -> None:
    for option, value in given.items():
        if value is not None and option not in TAKES[method]:
            others = ", ".join(name for name, options in TAKES.items() if option in options)
            raise ConfigError(f"--method {method} takes no --{option}; these do: {others}")


def picture_files(
    names: Sequence[str], on_message: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Files as they are, and the pictures that lie in folders, by name.

    A figure that ``attn-map`` drew, as its PNG file says, is no picture of a folder; by its name it
    can still be asked for.

    Raises:
        InputError: A folder holds no picture, or a name is empty.
    """
    found: list[str] = []
    for name in names:
        if not name:
            raise InputError("the name of a picture is empty; is a shell variable unset?")
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(str(p) for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
        pictures = [file for file in inside if software_of(file) != SOFTWARE]
        own = len(inside) - len(pictures)
        if not pictures:
            but = f" but {own} that attn-map drew" if own else ""
            raise InputError(f"{name}: no picture in this folder{but} ({', '.join(SUFFIXES)})")
        if own:
            on_message(f"{name}: left out {own} figure{'s'[: own > 1]} that attn-map drew")
        found += pictures
    return found


def map_metadata(look: Explanation) -> dict[str, Any]:
    """What a picture cannot say, as plain data."""
    return {
        "image": look.path,
        "class": look.label,
        "probability": look.probability,
        "about": look.asked,
        "method": look.method,
        "layers": list(look.layers),
        "heads": list(look.heads),
        "heads_averaged": look.are_heads_averaged or look.method not in METHODS_BY_HEAD,
        "query": look.query,
        "fit": look.fit,
        "box": list(look.box),
        "grid": list(look.grid),
        "num_prefix_tokens": look.num_prefix_tokens,
    }


def to_npz(look: Explanation) -> bytes:
    """The numbers behind the picture: maps, box, layers, heads, num_prefix_tokens."""
    with io.BytesIO() as file:
        np.savez(
            file,
            maps=look.maps,
            box=np.array(look.box),
            layers=np.array(look.layers),
            heads=np.array(look.heads),
            num_prefix_tokens=np.array(look.num_prefix_tokens),
        )
        return file.getvalue()
