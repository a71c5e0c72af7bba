"""Everything that may vary in a model, as frozen, checked data. No torch, no YAML."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)


class Spec(BaseModel):
    """A frozen record: unknown names, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def replace(self, **changes: Any) -> Self:
        """Return a checked copy with some fields changed."""
        return type(self)(**(self.model_dump() | changes))


def _pair(value: Any) -> Any:
    """An integer stands for a square; YAML's list is a pair."""
    if type(value) is int:
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _short(value: tuple[int, int]) -> int | list[int]:
    return value[0] if value[0] == value[1] else list(value)


def as_tuple(value: Any) -> Any:
    """YAML's list is a tuple."""
    return tuple(value) if isinstance(value, list) else value


ListToo = BeforeValidator(as_tuple)
Pixels = Annotated[int, Field(ge=1, le=1024)]
Size = Annotated[tuple[Pixels, Pixels], BeforeValidator(_pair), PlainSerializer(_short)]
"""(height, width) in pixels; one integer is a square."""
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Depth = Annotated[int, Field(ge=1, le=256)]
Channels = Annotated[tuple[float, ...], Field(min_length=1, max_length=64), ListToo]


_SIZES = ("family", "img_size", "in_chans", "num_classes")
_HIERARCHY = (
    *_SIZES,
    *("patch_size", "embed_dim", "depths", "num_heads", "pos_embed", "attn_clamp", "qkv_bias"),
    *("attn_proj", "proj_bias", "ffn", "mlp_ratio", "norm", "norm_eps", "final_norm", "residual"),
    *("layer_scale_init", "drop_path", "attn_drop", "proj_drop", "pos_drop"),
    *("pool", "head", "init"),
)
_PATCHES = ("patch_embed", "patch_bias", "patch_pre_norm", "patch_post_norm", "stem_width")
FIELDS: dict[str, tuple[str, ...]] = {
    "resnet18": _SIZES,
    "swin": (*_HIERARCHY, *_PATCHES, "norm_position", "window_size"),
    "coatnet": (*_HIERARCHY, "layout", "stem_width"),
    "pit": (
        *(*_HIERARCHY, *_PATCHES, "norm_position", "pos_embed_prefix", "reg_tokens", "attention"),
        *("linformer_rank", "linformer_share", "performer_features", "performer_redraw"),
        *("attn_window", "attn_scale"),
    ),
}
"""The fields of a model that a family has."""
STAGED = ("depths", "window_size", "layout")
"""Fields of a model with stages."""


class ModelSpec(Spec):
    """A model; each named slot of a Vision Transformer is filled from a table in ``core.nn``."""

    family: Literal["vit", "resnet18", "swin", "coatnet", "pit"] = "vit"
    """Vision Transformer, or one with stages; ResNet-18 has no fields but sizes."""
    img_size: Size | None = None
    """Height and width in pixels; the data set's unless set."""
    in_chans: int | None = Field(None, ge=1, le=64)
    """Input channels; the data set's unless set."""
    num_classes: int | None = Field(None, ge=1, le=100_000)
    """Classes; the data set's unless set."""
    patch_size: int = Field(4, ge=1, le=256)
    """Side of a square patch in pixels."""
    patch_embed: Literal["linear", "conv", "conv_stem", "conv_tokenizer"] = "linear"
    patch_bias: bool = True
    patch_pre_norm: bool = False
    """LayerNorm over the raw pixels of a patch (``linear`` only)."""
    patch_post_norm: bool = False
    """LayerNorm over the embedded patch."""
    stem_width: int | None = Field(None, ge=1, le=8192)
    """Channels of the layers of ``conv_tokenizer`` and ``conv_stem`` before the last, which double
    up to ``embed_dim`` unless set; of ``coatnet``'s stem, ``embed_dim`` unless set."""
    embed_dim: int = Field(192, ge=1, le=8192)
    """Width of a token; in families with stages that of the first, doubled from one to the next."""
    depth: int = Field(6, ge=0, le=256)
    """Number of transformer blocks."""
    depths: Annotated[tuple[Depth, ...], Field(min_length=1), ListToo] | None = None
    """Number of blocks in each stage of ``swin``, ``coatnet`` and ``pit``."""
    layout: str = "CCTT"
    """Stages of ``coatnet``: convolutions (C), then attention (T), which alone has heads and FFN,
    positions, dropout, LayerScale and a choice of norm."""
    window_size: int = Field(4, ge=1, le=64)
    """Side of a window of ``swin`` in patches."""
    num_heads: int = Field(3, ge=1, le=256)
    """Heads; in families with stages those of the first, doubled from one to the next."""
    pos_embed: Literal["none", "learned", "sincos1d", "sincos2d", "rope2d", "relative"] = "learned"
    pos_embed_prefix: bool = False
    """Positions for CLS and registers too; the report adds positions before it prepends CLS."""
    reg_tokens: int = Field(0, ge=0, le=256)
    """Register tokens, learned and never read out."""
    attention: Literal["softmax", "linformer", "performer", "linear", "strided", "local"] = (
        "softmax"
    )
    """Exact; or low rank, random features, elu + 1, row and column, a window around each patch."""
    linformer_rank: int = Field(32, ge=1, le=4096)
    """Projected keys and values of ``linformer``; no more than there are tokens."""
    linformer_share: Literal["heads", "none", "kv"] = "heads"
    """A projection for keys and one for values, shared by the heads or not; or one for both."""
    performer_features: int | None = Field(None, ge=1, le=65536)
    """Random features of ``performer``; d log d of a head's width d unless set."""
    performer_redraw: int = Field(1000, ge=1)
    """Optimiser steps after which ``performer`` draws other features."""
    attn_window: int = Field(3, ge=1, le=63)
    """Side of the window of ``local``, an odd number of patches."""
    attn_scale: Literal["head_dim", "embed_dim", "learned"] = "head_dim"
    """Scores are divided by sqrt(head_dim), sqrt(embed_dim) or a learned temperature."""
    attn_clamp: bool = False
    """Clamp scores to [-1e9, 1e4] as the report does; attention.py says why it is off."""
    qkv_bias: bool = True
    attn_proj: bool = True
    """Output projection after the heads."""
    proj_bias: bool = True
    ffn: Literal["gelu", "relu", "swiglu", "none"] = "gelu"
    mlp_ratio: float = Field(4.0, gt=0, le=64)
    """Hidden width of the feed-forward network as a multiple of ``embed_dim``."""
    mlp_dim: int | None = Field(None, ge=1, le=65536)
    """Hidden width of the feed-forward network; overrides ``mlp_ratio``."""
    norm: Literal["layer_norm", "batch_norm", "rms_norm", "none"] = "layer_norm"
    norm_eps: float = Field(1e-6, ge=0, le=1)
    norm_position: Literal["pre", "post"] = "pre"
    final_norm: bool | None = None
    """A norm before the head; unless set, pre-norm has one and post-norm has none."""
    residual: Literal["add", "none"] = "add"
    layer_scale_init: float | None = Field(None, gt=0, le=1)
    """Initial value of LayerScale; no LayerScale unless set."""
    drop_path: Rate = 0.0
    """Stochastic-depth rate of the last block; it grows linearly from 0 at the first."""
    attn_drop: Rate = 0.0
    """Dropout of attention weights."""
    proj_drop: Rate = 0.0
    """Dropout after the attention's projection and after both layers of the FFN."""
    pos_drop: Rate = 0.0
    """Dropout of the embedded tokens."""
    pool: Literal["cls", "mean", "seq"] = "cls"
    head: Literal["linear", "mlp"] = "linear"
    init: Literal["trunc_normal", "xavier_normal", "mimetic"] = "trunc_normal"

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def hidden_dim(self) -> int:
        return self.mlp_dim or max(1, int(self.embed_dim * self.mlp_ratio))

    @property
    def has_final_norm(self) -> bool:
        return self.norm_position == "pre" if self.final_norm is None else self.final_norm

    @property
    def has_batch_norm(self) -> bool:
        """Whether an image's result in training depends on the others of its batch."""
        conventional = self.family in ("resnet18", "coatnet") or self.patch_embed == "conv_stem"
        return conventional or self.norm == "batch_norm"

    @property
    def num_prefix_tokens(self) -> int:
        return (self.pool == "cls") + self.reg_tokens

    @property
    def _has_stem(self) -> bool:
        has_layers = self.patch_embed in ("conv_tokenizer", "conv_stem") and self.patch_size > 2
        return self.family == "coatnet" or has_layers

    @model_validator(mode="after")
    def _family_has_them(self) -> Self:
        every = type(self).model_fields
        known = FIELDS.get(self.family, [name for name in every if name not in STAGED])
        for name, field in every.items():
            default = field.get_default(call_default_factory=True)
            if name not in known and getattr(self, name) != default:
                what = "leave it out" + ("" if default is None else f", or at {default}")
                raise ValueError(f"family {self.family!r} has no {name}; {what}")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.family == "resnet18":
            return self
        if self.family != "vit":
            self._stages_fit()
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide embed_dim {self.embed_dim}"
            )
        if self.img_size and any(side % self.patch_size for side in self.img_size):
            height, width = self.img_size
            raise ValueError(f"patch_size {self.patch_size} does not divide {height}x{width}")
        if self.residual == "none" and self.drop_path > 0:
            raise ValueError("without a residual, drop_path would erase the signal; set it to 0")
        if self.stem_width and not self._has_stem:
            raise ValueError(
                "stem_width needs patch_embed 'conv_tokenizer' or 'conv_stem' with a patch_size of"
                " 4 or more: the last layer has embed_dim"
            )
        if self.patch_pre_norm and self.patch_embed != "linear":
            raise ValueError(
                "patch_pre_norm needs patch_embed 'linear', which cuts the patches first"
            )
        self._positions_fit()
        self._attention_fits()
        if self.init == "mimetic" and not self.attn_proj:
            raise ValueError("init 'mimetic' needs attn_proj: it ties the values to the projection")
        return self

    def _positions_fit(self) -> None:
        if self.pos_embed == "sincos1d" and self.embed_dim % 2:
            raise ValueError(f"pos_embed 'sincos1d' needs an even embed_dim, got {self.embed_dim}")
        if self.pos_embed == "sincos2d" and self.embed_dim % 4:
            raise ValueError(
                f"pos_embed 'sincos2d' needs embed_dim divisible by 4, got {self.embed_dim}"
            )
        if self.pos_embed == "rope2d" and self.head_dim % 4:
            raise ValueError(
                f"pos_embed 'rope2d' needs head_dim divisible by 4, got {self.head_dim}"
            )

    def _stages_fit(self) -> None:
        """What a family with stages needs."""
        family = self.family
        if self.depths is None:
            raise ValueError(f"family {family!r} needs depths, the blocks of each stage: [2, 2, 6]")
        if family in ("swin", "coatnet"):
            if self.pool == "cls":
                raise ValueError(f"family {family!r} has no CLS token; set pool to mean or seq")
            if self.pos_embed not in ("relative", "none"):
                raise ValueError(f"family {family!r} wants pos_embed 'relative', or 'none'")
        if self.init == "mimetic":
            raise ValueError(f"init 'mimetic' is for family 'vit', not {family!r}")
        if not re.fullmatch("C*T+", self.layout):
            raise ValueError(f"layout {self.layout!r}: C for convolutions, then T: CCTT, or CTT")
        if family == "coatnet" and len(self.layout) != len(self.depths):
            raise ValueError(f"layout {self.layout} does not name {len(self.depths)} stages")
        if family == "coatnet" and self.patch_size not in (1, 2, 4):
            raise ValueError(f"family 'coatnet' wants patch_size 1, 2 or 4, not {self.patch_size}")

    def _attention_fits(self) -> None:
        """What a rule has no place for is refused, rather than ignored."""
        rule = self.attention
        if rule != "softmax" and self.pos_embed == "relative":
            raise ValueError(f"attention {rule!r} has no matrix of scores for pos_embed 'relative'")
        if rule in ("performer", "linear") and self.attn_drop:
            raise ValueError(f"attention {rule!r} has no weights that attn_drop could drop")
        if rule not in ("softmax", "linformer") and self.attn_clamp:
            raise ValueError(f"attention {rule!r} has no attn_clamp")
        if rule == "linear" and self.attn_scale != "head_dim":
            raise ValueError("attention 'linear' has no temperature; leave attn_scale out")
        if self.attn_window % 2 == 0:
            raise ValueError(f"attn_window {self.attn_window} has no middle; make it odd")
