"""A trained model's prediction for a picture, and the map that explains it.

Axes: H W pixels of the picture, gh gw patch grid, L layers, h heads, N tokens (prefix first).
"""

import io
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
    states_all,
)
from vitcli.core.models.image_model import MappedModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.plugin import Registry, missing_for
from vitcli.runner.data.pictures import decode, picture_bytes, picture_to_draw, quiet_pillow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import did_you_mean, one_line

OPTIONS = {
    "cls": ("layer", "head", "query"),
    "rollout": ("layer", "query"),
    "grad-rollout": ("class", "query"),
    "gradcam": ("class", "layer"),
    "head": ("layer", "head", "query"),
    "raw": ("layer", "head"),
}
MAX_CLASSES_LISTED = 10
MORE_THAN_WEIGHTS = (
    "The map shows attention weights, and the attention, an own part, computes more than they say."
)


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of one picture: the predicted class and the map."""

    path: str
    picture: np.ndarray
    """(H, W, 3) uint8, as figures show it."""
    box: tuple[int, int, int, int]
    """The part of the picture that the model gets: top, left, height, width."""
    fit: str
    batch: torch.Tensor
    """(1, C, H, W), normalised: the model's input."""
    label: str | None
    """The likeliest class; None for a model that does not classify."""
    probability: float | None
    explained_class: str | None
    """The class that the map explains: the requested class, or ``label``."""
    method: str
    layers: tuple[int, ...]
    """Counted from 1. For Grad-CAM, 0 means the embedded patches."""
    depth: int
    are_heads_averaged: bool
    """Whether ``head`` or ``raw`` returns the mean over heads. The other methods always average."""
    heads: tuple[int, ...]
    """Counted from 1: the heads that ``head`` and ``raw`` show, and that other methods average."""
    maps: np.ndarray
    """(gh, gw); (L, h, gh, gw) for ``head``; (L, h, N, N) for ``raw``; not negative."""
    grid: tuple[int, int]
    num_prefix_tokens: int
    query: tuple[int, int] | None
    """(row, column) of the queried patch, from 0."""
    has_cls: bool
    reader: str
    """Name of what the classifier reads."""
    states_all: bool = True
    """Whether attention computes what its weights say; an own rule may do more."""
    second_reader: str | None = None
    """Name of the register that the prediction reads, too."""

    @property
    def prediction(self) -> str | None:
        """The likeliest class with its probability, such as ``cat, 93.1 %``."""
        if self.label is None or self.probability is None:
            return None
        return f"{one_line(self.label, 48)}, {100 * self.probability:.1f} %"


class Explainer:
    """Source of explanations: a run's Vision Transformer with a checked method and its options."""

    def __init__(
        self,
        predictor: Predictor,
        *,
        method: str | None = None,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        average_heads: bool = False,
        query: tuple[float, float] | None = None,
        class_name: str | None = None,
        fit: str | None = None,
        by_class: bool = True,
    ) -> None:
        """Check the method and its options, before any picture is read.

        ``layers`` count from 1, or from -1 backwards; ``heads`` from 1. ``query`` is x and y of a
        point, as shares (0 to 1) of the model's input. ``by_class`` says whether the default method
        may be a map of one class.
        """
        model, names = predictor.model, predictor.names
        if not isinstance(model, MappedModel):
            raise ConfigError(
                f"{predictor.run.name}: family {model.spec.family!r} {model.no_maps}; name a run"
                " of a Vision Transformer"
            )
        self.predictor, self.model = predictor, model
        self.classifies = predictor.classifies
        if model.no_maps and method not in (None, "gradcam"):
            raise ConfigError(
                f"--method {method}: {predictor.run.name} {model.no_maps}; try --method gradcam"
            )
        # A map of one class comes from all layers, so named layers ask for another map.
        can_explain = by_class and predictor.names_outputs and layers is None
        self.method = method or _choose_method(model, query, class_name, can_explain)
        if not predictor.names_outputs and "class" in OPTIONS[self.method]:
            raise ConfigError(
                f"--method {self.method} explains a class, but {predictor.run.name} does not"
                " classify; try --method rollout"
            )
        if class_name is not None and class_name not in names:
            hint = did_you_mean(class_name, names) or _list_classes(names, predictor.run)
            raise ConfigError(f"--class {class_name}: no such class{hint}")
        self._require_weights()
        head = "mean" if average_heads else heads
        given = {"layer": layers, "head": head, "query": query, "class": class_name}
        for option, value in given.items():
            if value is not None and option not in OPTIONS[self.method]:
                others = ", ".join(name for name, options in OPTIONS.items() if option in options)
                raise ConfigError(
                    f"--method {self.method} does not take --{option}; these methods do: {others}"
                )
        self.class_name, self.data = class_name, predictor.read_as(fit)
        self.heads = self._check_heads(heads)
        self.average_heads = average_heads and self.method in METHODS_BY_HEAD
        self.query = None
        if query is not None:
            if not all(0 <= share <= 1 for share in query):
                raise ConfigError("--query takes x and y between 0 and 1, such as 0.5,0.25")
            (x, y), (height, width) = query, model.grid_size
            self.query = min(height - 1, int(y * height)), min(width - 1, int(x * width))
        self.layers = self._check_layers(layers)

    def _require_weights(self) -> None:
        """Refuse a map of weights that an own part does not state, or an attention cannot have."""
        model = self.model
        if self.method == "gradcam" or not len(model.blocks) or model.has_attention_weights:
            return
        part = f"attention {getattr(model.spec, 'attention', model.spec.family)!r}"
        if isinstance(model, VisionTransformer) and not hasattr(model.pool, "weights"):
            if self.method == "raw":
                return
            part = f"pooling {model.pool_name!r}"
        raise ConfigError(
            f"--method {self.method}: {part} has no weights to show; try --method gradcam"
        )

    def _check_layers(self, layers: Sequence[int] | None) -> tuple[int, ...]:
        try:
            if self.model.no_maps and layers:
                raise ValueError(f"Grad-CAM of {self.predictor.run.name} reads its last layer only")
            if self.method == "gradcam":
                if layers and len(layers) > 1:
                    raise ValueError("gradcam takes only one layer")
                return (feature_layer(self.model, layers[0] if layers else None) - 1,)
            if not len(self.model.blocks):
                raise ConfigError("the model has no layers, so it has no attention")
            every = range(1, len(self.model.blocks) + 1)
            default = every if self.method in METHODS_BY_HEAD else [-1]
            return check_layers(self.model, list(layers or default))
        except ValueError as error:
            raise ConfigError(f"--layer: {error}") from error

    def _check_heads(self, heads: Sequence[int] | None) -> tuple[int, ...]:
        count = self.model.num_heads
        for head in heads or ():
            if not 1 <= head <= count:
                raise ConfigError(
                    f"--head {head} is out of range: the model has heads 1 to {count}"
                )
        return tuple(head - 1 for head in heads or range(1, count + 1))

    def explain(self, path: str) -> Explanation:
        """Read a picture (``-`` is standard input), classify it and make its map."""
        content = picture_bytes(path)
        predictor = self.predictor
        with quiet_pillow():
            shape = predictor.size, predictor.in_chans
            pixels = decode(content, path, *shape, self.data, predictor.seen)
        picture, box = picture_to_draw(content, path, predictor.size, self.data)
        data, device = predictor.spec.data, predictor.device
        mean, std = (torch.tensor(row, device=device) for row in (data.mean, data.std))
        batch = normalize(pixels[None].to(device), mean, std)
        with torch.no_grad():
            logits = self.model(batch)[0] / predictor.temperature
        if not logits.isfinite().all():
            raise InputError(f"{path}: a logit is infinite or NaN")
        shares = logits.softmax(-1)
        best = int(shares.argmax())
        explained = best if self.class_name is None else predictor.names.index(self.class_name)
        maps = self._maps(batch, explained)
        return Explanation(
            path=path,
            picture=picture,
            box=box,
            fit=self.data.fit,
            batch=batch,
            label=predictor.names[best] if self.classifies else None,
            probability=shares[best].item() if self.classifies else None,
            explained_class=predictor.names[explained] if predictor.names_outputs else None,
            method=self.method,
            layers=tuple(layer + 1 for layer in self.layers),
            depth=len(self.model.blocks),
            heads=tuple(head + 1 for head in self.heads),
            are_heads_averaged=self.average_heads,
            maps=maps,
            grid=self.model.grid_size if self.model.blocks else maps.shape[-2:],
            num_prefix_tokens=self.model.num_prefix_tokens,
            query=self.query,
            has_cls=self.model.cls_token is not None,
            reader=self.model.reader,
            states_all=self.method == "gradcam" or states_all(self.model, batch),
            second_reader=self.model.second_reader,
        )

    def _maps(self, batch: torch.Tensor, explained: int) -> np.ndarray:
        request = MapRequest(
            model=self.model,
            images=batch,
            layers=self.layers,
            heads=self.heads,
            query=self.query,
            classes=torch.tensor([explained], device=batch.device),
        )
        method = (METHODS | METHODS_BY_HEAD)[self.method]
        try:
            maps: np.ndarray = method(request)[0].float().cpu().numpy()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return maps.mean(1, keepdims=True) if self.average_heads else maps


def _choose_method(
    model: MappedModel, query: object, class_name: str | None, by_class: bool
) -> str:
    if class_name is not None and not model.no_maps:
        return "grad-rollout"
    if query is not None and not model.no_maps:
        return "cls"
    return default_method(model, by_class=by_class)


def _list_classes(names: Sequence[str], run: RunDir) -> str:
    if len(names) <= MAX_CLASSES_LISTED:
        return f"; {run.name} has the classes {', '.join(names)}"
    command = f": vitcli runs show {shlex.quote(run.name)}" if run.exists else ""
    return f"; {run.name} has {len(names)} classes{command}"


def map_metadata(explanation: Explanation) -> dict[str, Any]:
    return {
        "image": explanation.path,
        "class": explanation.label,
        "probability": explanation.probability,
        "about": explanation.explained_class,
        "method": explanation.method,
        "layers": list(explanation.layers),
        "heads": list(explanation.heads),
        "heads_averaged": explanation.are_heads_averaged
        or explanation.method not in METHODS_BY_HEAD,
        "query": explanation.query,
        "fit": explanation.fit,
        "size": list(explanation.picture.shape[:2]),
        "box": list(explanation.box),
        "grid": list(explanation.grid),
        "num_prefix_tokens": explanation.num_prefix_tokens,
    }


def to_npz(explanation: Explanation) -> bytes:
    with io.BytesIO() as file:
        np.savez(
            file,
            maps=explanation.maps,
            size=np.array(explanation.picture.shape[:2]),
            box=np.array(explanation.box),
            layers=np.array(explanation.layers),
            heads=np.array(explanation.heads),
            num_prefix_tokens=np.array(explanation.num_prefix_tokens),
        )
        return file.getvalue()


class PageWriter(Protocol):
    """A page about the attention to one picture, which a plugin adds."""

    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None: ...

    def page(self, explanation: Explanation) -> bytes: ...


PAGES = Registry[type[PageWriter]]("map page")


def page_writer(
    name: str, explainer: Explainer, *, all_layers: bool
) -> Callable[[Explanation], bytes]:
    if name not in PAGES:
        why = missing_for(PAGES.field, name) or f"needs a plugin with the page {name!r}"
        raise ConfigError(f"--format html {why}")
    return PAGES[name](explainer, all_layers=all_layers).page
