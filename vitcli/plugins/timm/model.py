"""Models of timm. timm is imported when one is built.

Axes: B batch, C channels, H W pixels, N tokens (prefix first), D width, h num_heads,
K classes.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import MappedModel, chosen_layers, hooked
from vitcli.core.randomness import seed_of
from vitcli.plugins.timm.spec import MISSING, TimmSpec

CAPTURED = {"Attention", "AttentionRope", "EvaAttention"}
"""Classes of timm whose attention is one matrix between all tokens."""
POOLS = {"token": "cls", "avg": "mean", "map": "seq"}
"""timm's pooling of tokens -> the row of ``POOLS`` that is like it."""


def create_net(spec: TimmSpec, seed: int = 0, **options: Any) -> Any:
    """Return timm's model of a name, with timm's random weights, for the sizes of the spec.

    Its ``arguments`` are those of ``create_model``, beside the options. torch's global generator
    stays as it is. A ValueError says what timm refuses.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ValueError(MISSING) from error
    name = spec.name or ""
    if not timm.is_model(name):  # before create_model, which reads other names from the network
        raise ValueError(f"timm {timm.__version__} has no model {name!r}")
    sizes = {name: getattr(spec, name) for name in ("num_classes", "in_chans", "img_size")}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            try:
                net: Any = timm.create_model(name, **sizes | options)
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
                del sizes["img_size"]  # a net that takes any size has no such argument
                net = timm.create_model(name, **sizes | options)
        except (RuntimeError, ValueError, TypeError, LookupError, AssertionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"timm refuses {name}: {reason}") from error
    net.arguments = {"model_name": name} | sizes
    return net


class TimmModel(MappedModel):
    """A model of timm: normalised images (B, C, H, W) -> timm's logits (B, K)."""

    spec: TimmSpec
    net: Any
    library_prefix = "net."

    def __init__(self, spec: TimmSpec) -> None:
        super().__init__(spec)
        with torch.device("meta"):
            self.net = create_net(spec)
        patch = getattr(getattr(self.net, "patch_embed", None), "patch_size", None) or 1
        patch = (patch, patch) if isinstance(patch, int) else patch
        height, width = self.image_shape[1:]
        if height % patch[0] or width % patch[1]:
            raise ValueError(
                f"{spec.name} has patches of {patch[0]}x{patch[1]} pixels, which do not divide"
                f" {height}x{width}; set data.resize"
            )
        kinds = {type(getattr(block, "attn", None)).__name__ for block in self._all_blocks()}
        has_maps = kinds and kinds <= CAPTURED and hasattr(self.net, "num_prefix_tokens")
        self.no_maps = None if has_maps else "has no attention between all patches"

    def initialise(self, seed: int | None = None) -> Self:
        """Fill the model with timm's initial weights, which depend only on the seed."""
        if torch.empty(0).is_meta:
            return self
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.net = create_net(self.spec, seed_of("init", seed))
        return self

    def _all_blocks(self) -> Sequence[Any]:
        return [*getattr(self.net, "blocks", ())]

    @property
    def grad_checkpointing(self) -> bool:
        return self._recomputes

    @grad_checkpointing.setter
    def grad_checkpointing(self, value: bool) -> None:
        self._recomputes = value
        if value:
            self.net.set_grad_checkpointing(True)

    @property
    def head(self) -> nn.Module:  # type: ignore[override]
        found = self.net.get_classifier()
        return nn.ModuleList(found) if isinstance(found, tuple) else found

    @property
    def library_call(self) -> tuple[str, dict[str, Any]]:
        return "timm.create_model", self.net.arguments

    @property
    def num_features(self) -> int:
        return int(self.net.head_hidden_size)

    def parameter_layers(self) -> list[int]:
        from timm.models import group_parameters

        if not hasattr(self.net, "group_matcher"):
            return super().parameter_layers()
        layers = group_parameters(self.net, self.net.group_matcher(), reverse=True)
        return [layers[name] for name, _ in self.net.named_parameters()]

    def features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.net.forward_head(self.net.forward_features(images), pre_logits=True)

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.net(images)

    @property
    def has_attention_weights(self) -> bool:
        return self.no_maps is None

    @property
    def blocks(self) -> Sequence[Any]:
        """Return the blocks whose attention can be captured: all of the model, or none."""
        return self._all_blocks() if self.has_attention_weights else ()

    @property
    def num_heads(self) -> int:
        return int(self.blocks[0].attn.num_heads) if self.blocks else 0

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.net.num_prefix_tokens) if self.blocks else 0

    @property
    def grid_size(self) -> tuple[int, int]:
        height, width = self.net.patch_embed.grid_size
        return height, width

    @property
    def pool_name(self) -> str:
        return POOLS[self.net.global_pool]

    @property
    def cls_token(self) -> Tensor | None:
        """Return the CLS token, if the head reads it."""
        return self.net.cls_token if self.blocks and self.pool_name == "cls" else None

    def pool_weights(self, images: Tensor) -> Tensor:
        """Return the share of each token in the pooling: (B, N), rows sum to 1."""
        first = self.num_prefix_tokens
        count = first + self.grid_size[0] * self.grid_size[1]
        if self.pool_name == "seq":
            pool = self.net.attn_pool
            with hooked({"q": pool.q_norm, "k": pool.k_norm}) as found:
                self.net(images)
            return (found["q"] @ found["k"].mT * pool.scale).softmax(-1).mean((1, 2))
        read = torch.zeros(len(images), count, device=images.device)
        if self.pool_name == "mean":
            read[:, first:] = 1
        else:
            read[:, : 2 if hasattr(self.net, "dist_token") else 1] = 1
        return read / read.sum(1, keepdim=True)

    def attention_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        return self.forward_with_weights(images, layers)[1]

    def forward_with_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the logits (B, K), and the attention weights that they depend on, by layer."""
        self.check_images(images)
        chosen = chosen_layers(layers, len(self.blocks))
        parts = [self.blocks[i].attn for i in chosen]
        fused = [part.fused_attn for part in parts]
        try:
            for part in parts:  # a fused attention never stores its weights
                part.fused_attn = False
            with hooked({i: self.blocks[i].attn.attn_drop for i in chosen}) as found:
                logits = self.net(images)
        finally:
            for part, value in zip(parts, fused, strict=True):
                part.fused_attn = value
        return logits, found

    def forward_with_features(self, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K), and the features that they depend on.

        The features are the tokens (B, N, D) that enter the attention after ``layer`` blocks, or
        the head after the last block. Without attention weights, they are the last feature map,
        (B, D, H, W) or (B, H, W, D).
        """
        self.check_images(images)
        if self.no_maps:
            features = self.net.forward_features(images)
            if features.ndim != 4:
                raise ValueError(f"{self.spec.name} {self.no_maps}, and no feature map")
            return self.net.forward_head(features), features
        is_last = layer == len(self.blocks)
        with hooked({0: self.net.norm if is_last else self.blocks[layer].norm1}) as found:
            logits = self.net(images)
        return logits, found[0]

    def by_place(self, features: Tensor) -> Tensor:
        if features.ndim == 3:
            return super().by_place(features)
        is_last = features.shape[-1] == self.net.num_features
        return features if is_last else features.movedim(1, -1)
