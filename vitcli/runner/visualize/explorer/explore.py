"""From a question to a run's model to the page on which a person asks on."""

from pathlib import Path

from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.attn_map.explain import TAKES, Explainer, Explanation
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import printable
from vitcli.runner.visualize.explorer.page import Opening, page
from vitcli.runner.visualize.explorer.scene import Scene, make_scene

MAX_BYTES = 32 * 2**20
"""Of attention in one page: 12 layers of 12 heads over 197 tokens are 8 MiB, and 24 layers of 16
heads over 577 tokens, 174 MiB, would keep a browser busy for long."""
METHODS_OF_A_CLASS = [name for name, options in TAKES.items() if "class" in options]


class Explorer:
    """A model, and the state in which its pages open."""

    def __init__(self, looker: Explainer, *, all_layers: bool) -> None:
        """Check the question once, before any picture.

        Args:
            looker: Its layers are those that the page holds, and the last of them is shown first.
            all_layers: Hold all layers instead; the page opens with the last.

        Raises:
            ConfigError: The page cannot open with this question, or would be too large.
        """
        model = looker.model
        if looker.method in METHODS_OF_A_CLASS:
            raise ConfigError(
                f"--format html shows attention for all classes alike, no {looker.method}; take"
                " --format png, or another --method"
            )
        if not model.has_attention_weights:
            about = repr(model.spec.attention)
            raise ConfigError(f"attention {about} has no weights of tokens; try --method gradcam")
        named = len(looker.heads) < model.spec.num_heads
        if named and len(looker.heads) > 1:
            raise ConfigError("--format html opens with one head; name one with --head")
        by_head = looker.method == "head" and not looker.average_heads
        self.looker = looker
        self.layers = tuple(range(len(model.blocks))) if all_layers else looker.layers
        check_size(model, len(self.layers))
        self.opening = Opening(
            layer=self.layers[-1] + 1,
            head=looker.heads[0] + 1 if named or by_head else None,
            rollout=looker.method == "rollout",
            query=looker.query,
        )

    def page(self, look: Explanation) -> bytes:
        """The page about one picture."""
        run = self.looker.predictor.run
        about = f"Attention of {run.name}, trained on {self.looker.predictor.spec.data.name}"
        return page([self.scene(look)], self.opening, about=about)

    def scene(self, look: Explanation) -> Scene:
        """The numbers of one picture."""
        return make_scene(
            self.looker.model,
            look.batch,
            name=printable("stdin" if look.path == "-" else Path(look.path).name),
            picture=look.picture,
            box=look.box,
            class_names=self.looker.predictor.names,
            layers=self.layers,
        )


def check_size(model: VisionTransformer, num_layers: int) -> None:
    """Refuse a page that would hold more than ``MAX_BYTES`` of attention.

    Raises:
        ConfigError: It would.
    """
    size = attention_bytes(model, num_layers)
    if size > MAX_BYTES:
        advice = (
            "name fewer layers, such as --layer -1"
            if attention_bytes(model, 1) <= MAX_BYTES
            else "take --format png or npz"
        )
        layers = "1 layer" if num_layers == 1 else f"{num_layers} layers"
        raise ConfigError(
            f"--format html: {layers} would be {size / 2**20:,.0f} MiB of attention,"
            f" over {MAX_BYTES >> 20} MiB; {advice}"
        )


def attention_bytes(model: VisionTransformer, num_layers: int) -> int:
    """What the attention of one picture takes up in a page: a byte and a third each, and maxima."""
    height, width = model.grid_size
    tokens = model.num_prefix_tokens + height * width
    rows = num_layers * (model.spec.num_heads + 1) * (tokens + 1)
    return rows * (tokens + 4) * 4 // 3
