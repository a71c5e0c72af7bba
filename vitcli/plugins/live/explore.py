"""The explorer's page about one picture and one run's model."""

from pathlib import Path

from vitcli.core.models.image_model import MappedModel
from vitcli.core.nn.attention import NoMapError
from vitcli.plugins.live.page import Opening, page
from vitcli.plugins.live.scene import make_scene
from vitcli.runner.attn_map.explain import OPTIONS, Explainer, Explanation
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import printable, quantity

MAX_BYTES = 32 * 2**20
"""Largest size of the attention in one page. 12 layers of 12 heads over 197 tokens need 8 MiB; 24
layers of 16 heads over 577 tokens need 174 MiB, which is too slow in a browser."""


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
        self.opening = Opening(
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
            scene = make_scene(
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
        return page([scene], self.opening, about=about)


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
