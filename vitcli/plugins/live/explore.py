"""The explorer's page about one picture and one run's model."""

import copy
from dataclasses import replace
from pathlib import Path

import torch

from vitcli.core.data.augment import normalize
from vitcli.core.models.image_model import MappedModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.nn.attention import NoMapError
from vitcli.core.spec.slots import POOLS
from vitcli.plugins.live import page as pages
from vitcli.plugins.live.packing import UnknownLayerError, pack_model
from vitcli.runner.attn_map.explain import OPTIONS, Explainer, Explanation
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.text import printable, quantity
from vitcli.runner.visualize.figure import InteractiveFigure

MAX_BYTES = 32 * 2**20
"""Largest size of the attention in one page. 12 layers of 12 heads over 197 tokens need 8 MiB; 24
layers of 16 heads over 577 tokens need 174 MiB, which is too slow in a browser."""
MAX_SCENES = 4


class Explorer:
    """Writer of explorer pages for one model, and the view that each page shows first."""

    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None:
        model = explainer.model
        if "class" in OPTIONS[explainer.method]:
            raise ConfigError(
                f"--format html cannot show {explainer.method}, which explains one class; use"
                " --format png or another --method"
            )
        if not model.has_attention_weights:
            name = repr(getattr(model.spec, "attention", model.spec.family))
            raise ConfigError(f"attention {name} has no attention matrix; use --method gradcam")
        are_heads_named = len(explainer.heads) < model.num_heads
        if are_heads_named and len(explainer.heads) > 1:
            raise ConfigError("--format html opens with one head; name only one with --head")
        is_by_head = explainer.method == "head" and not explainer.average_heads
        self.explainer = explainer
        self.layers = tuple(range(len(model.blocks))) if all_layers else explainer.layers
        self.check_attention()
        self.opening = pages.Opening(
            layer=self.layers[-1] + 1,
            head=explainer.heads[0] + 1 if are_heads_named or is_by_head else None,
            rollout=explainer.method == "rollout",
            query=explainer.query,
        )

    def check_attention(self) -> None:
        model, layers = self.explainer.model, len(self.layers)
        fits = attention_bytes(model, 1) <= MAX_BYTES
        check_size(
            f"--format html: the attention of {quantity(layers, 'layer')} needs",
            attention_bytes(model, layers),
            "name fewer layers, such as --layer -1" if fits else "use --format png or npz",
        )

    def page(self, explanation: Explanation) -> bytes:
        predictor = self.explainer.predictor
        try:
            scene = pages.make_scene(
                self.explainer.model,
                explanation.batch,
                name=name_of(explanation),
                picture=explanation.picture,
                box=explanation.box,
                class_names=predictor.names if self.explainer.classifies else (),
                temperature=predictor.temperature,
                layers=self.layers,
            )
        except NoMapError as error:
            raise ConfigError(f"--format html: {error}") from error
        about = f"Attention of {predictor.run.name}, {predictor.origin}"
        return pages.page([scene], self.opening, about=about)


def name_of(explanation: Explanation) -> str:
    path = explanation.path
    return printable("stdin" if path == "-" else Path(path).name)


def check_size(need: str, num_bytes: int, advice: str) -> None:
    if num_bytes > MAX_BYTES:
        raise ConfigError(
            f"{need} {num_bytes / 2**20:,.0f} MiB, and the limit is {MAX_BYTES >> 20} MiB; {advice}"
        )


def attention_bytes(model: MappedModel, num_layers: int) -> int:
    """Return the bytes in base64 of one picture's attention: one a weight, four a row's maximum."""
    height, width = model.grid_size
    tokens = model.num_prefix_tokens + height * width
    rows = num_layers * (model.num_heads + 1) * (tokens + 1)
    return rows * (tokens + 4) * 4 // 3


STYLES = ("explorer.css", "live/live.css")
PARTS = ("steps", "network", "photo", "scene", "answer", "live")
SCRIPTS = (*pages.PARTS, *(f"live/{name}.js" for name in PARTS))


class LiveExplorer(Explorer):
    """Writer of pages with the model inside, which classify photos without Python.

    The page holds the steps and weights of one Vision Transformer and computes its forward pass in
    JavaScript (templates/live). It also holds the logits of its first picture, computed here: if
    the browser computes others, the page says so.
    """

    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None:
        if not isinstance(explainer.model, VisionTransformer):
            family = explainer.model.spec.family
            raise ConfigError(
                f"--live: the page cannot compute family {family!r}; leave out --live"
            )
        super().__init__(explainer, all_layers=True)
        if not all_layers:
            self.opening = replace(self.opening, layer=explainer.layers[-1] + 1)
        predictor = explainer.predictor
        if not explainer.classifies:
            raise ConfigError(
                f"--live shows classes, but {predictor.run.name} does not classify; leave out"
                " --live"
            )
        is_on_cpu = predictor.device.type == "cpu"
        self.model = explainer.model if is_on_cpu else copy.deepcopy(explainer.model).to("cpu")
        data = predictor.spec.data
        self.mean, self.std = data.mean or (), data.std or ()
        try:
            packed, weights = pack_model(self.model, self.mean, self.std)
        except UnknownLayerError as error:
            raise ConfigError(
                f"--live: the page cannot compute {error} of {predictor.run.name}; leave out --live"
            ) from error
        num_bytes = sum(map(len, weights)) * 4 // 3  # in base64
        check_size("--live: the weights need", num_bytes, "leave out --live")
        self.packed = {"model": packed, "weights": [pages.to_base64(part) for part in weights]}

    def check_attention(self) -> None:
        """Refuse a model whose attention is too large for a browser, which computes it in fp32."""
        model = self.explainer.model
        assert isinstance(model, VisionTransformer)
        tokens = model.num_prefix_tokens + model.num_patches
        maps = len(self.layers) * (model.spec.num_heads + 1)  # a rollout for each layer
        size = 4 * maps * tokens**2
        check_size("--live: the attention of one picture needs", size, "leave out --live")

    def page(self, explanation: Explanation) -> bytes:
        predictor, model = self.explainer.predictor, self.model
        name = name_of(explanation)
        pool, prefix = POOLS[model.spec.pool], pages.prefix_names(model)
        fill = [round(255 * share) for share in self.mean]
        facts = {
            "grid": model.grid_size,
            "prefix": prefix,
            "layers": [layer + 1 for layer in self.layers],
            "heads": model.spec.num_heads,
            "readOut": 0 if pool.has_cls_token else len(prefix) + model.num_patches,
            "pool": model.spec.pool,
            "reader": pool.reads,
            "classNames": predictor.names,
            "temperature": predictor.temperature,
            "fill": fill if len(fill) == 3 else 3 * fill,
        }
        pixels = torch.from_numpy(explanation.pixels)[None]
        with torch.no_grad():
            logits = model(normalize(pixels, torch.tensor(self.mean), torch.tensor(self.std)))[0]
        picture = pages.pack_picture(name, explanation.picture, explanation.box) | {
            "pixels": pages.to_base64(explanation.pixels.transpose(1, 2, 0)),
            "logits": logits.tolist(),
        }
        explorer = pages.make_fragment(
            self.packed | {"scenes": [picture], "about": facts},
            self.opening,
            keys="page",
            template="live_fragment.html",
            styles=STYLES,
            scripts=SCRIPTS,
        )
        about = f"{predictor.run.name}, {predictor.origin}. The model is inside this page."
        return pages.whole_page(explorer, title=name, about=about)


def explorer_figure(tested: TrainedRun) -> InteractiveFigure:
    tested.require_classifier()
    model = tested.attention_model
    count = min(MAX_SCENES, MAX_BYTES // attention_bytes(model, len(model.blocks)))
    if not count:
        raise NoFigureError("the attention of one picture is too large for a page")
    scenes = []
    for index in tested.first_of_each_class[:count]:
        picture = tested.picture(index)
        label = tested.class_names[int(tested.data.test.labels[index])]
        try:
            scene = pages.make_scene(
                model,
                tested.batch(torch.tensor([index])),
                name=f"{label}, test image {index}",
                picture=picture,
                box=(0, 0, *picture.shape[:2]),
                class_names=tested.class_names,
                temperature=tested.temperature,
            )
        except InputError as error:
            raise NoFigureError(str(error)) from error
        scenes.append(scene)
    explorer = pages.fragment(scenes)
    return InteractiveFigure(
        title="Explore",
        page=pages.page(scenes, about=f"Attention of {tested.name}"),
        **vars(explorer),
        note=f"The attention of every patch of {len(scenes)} test images, the first image of each"
        " of the first classes.",
    )
