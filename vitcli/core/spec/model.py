"""What the families of models share: each family's spec is built from these."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from vitcli.core.spec.base import Depth, ListToo, Rate, Size, Spec
from vitcli.core.spec.rows import RowOf
from vitcli.core.spec.slots import (
    ATTENTIONS,
    ATTN_SCALES,
    FFNS,
    HEADS,
    INITS,
    LINFORMER_SHARES,
    NORM_POSITIONS,
    NORMS,
    PATCH_EMBEDS,
    POOLS,
    POS_EMBEDS,
    RESIDUALS,
)


class ModelSpec(Spec):
    """What every model has; ``model_spec`` makes the spec of a family."""

    family: str
    """Kind of model; it decides which other fields there are."""
    img_size: Size | None = None
    """Height and width in pixels; the data set's unless set."""
    in_chans: int | None = Field(None, ge=1, le=64)
    """Input channels; the data set's unless set."""
    num_classes: int | None = Field(None, ge=1, le=100_000)
    """Number of classes; the data set's unless set."""

    has_blocks: ClassVar[bool] = True
    """Whether the family is made of transformer blocks, which can be recomputed."""
    is_convolutional: ClassVar[bool] = False
    """Whether the family has batch norm whatever its fields are."""
    min_batch: ClassVar[int] = 1
    """The smallest batch that the family can be trained with."""

    @property
    def has_batch_norm(self) -> bool:
        """Whether an image's result in training depends on the other images of its batch."""
        return self.is_convolutional

    @property
    def has_block_matrices(self) -> bool:
        """Whether the model has transformer blocks, and so matrices inside them."""
        return self.has_blocks


class TokenSpec(ModelSpec):
    """What models of tokens share.

    Some properties are fields in some families and fixed in others; a layer asks the property.
    """

    patch_size: int = Field(4, ge=1, le=256)
    """Side of a square patch in pixels."""
    embed_dim: int = Field(192, ge=1, le=8192)
    """Width of a token; in families with stages the width in the first stage, doubled from one
    stage to the next."""
    num_heads: int = Field(3, ge=1, le=256)
    """Heads; in families with stages the heads of the first stage, doubled from one stage to the
    next."""
    pos_embed: Annotated[str, RowOf(POS_EMBEDS)] = "learned"
    """How positions enter."""
    attn_clamp: bool = False
    """Clamp scores to [-1e9, 1e4] as the report does; ops/attention.py explains why it is off."""
    qkv_bias: bool = True
    attn_proj: bool = True
    """Output projection after the heads."""
    proj_bias: bool = True
    ffn: Annotated[str, RowOf(FFNS)] = "gelu"
    """Feed-forward network."""
    mlp_ratio: float = Field(4.0, gt=0, le=64)
    """Hidden width of the feed-forward network as a multiple of ``embed_dim``."""
    norm: Annotated[str, RowOf(NORMS)] = "layer_norm"
    """Normalisation."""
    norm_eps: float = Field(1e-6, ge=0, le=1)
    final_norm: bool | None = None
    """A norm before the head; unless set, pre-norm has one and post-norm has none."""
    residual: Annotated[str, RowOf(RESIDUALS)] = "add"
    """How attention and FFN join their input."""
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
    pool: Annotated[str, RowOf(POOLS)] = "cls"
    """What is read out of the tokens."""
    head: Annotated[str, RowOf(HEADS)] = "linear"
    """From the read-out to the classes."""
    init: Annotated[str, RowOf(INITS)] = "trunc_normal"
    """Scheme of the initial weights."""

    @property
    def attention_rule(self) -> str:
        """The row of ``ATTENTIONS`` in every block."""
        return "softmax"

    @property
    def score_scale(self) -> str:
        """The row of ``ATTN_SCALES`` in every block."""
        return "head_dim"

    @property
    def branch_norm(self) -> str:
        """The row of ``NORM_POSITIONS`` of every branch."""
        return "pre"

    @property
    def num_registers(self) -> int:
        return 0

    @property
    def prefix_has_positions(self) -> bool:
        return False

    @property
    def num_prefix_tokens(self) -> int:
        return POOLS[self.pool].has_cls_token + self.num_registers

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @property
    def hidden_dim(self) -> int:
        """Hidden width of the feed-forward network."""
        return max(1, int(self.embed_dim * self.mlp_ratio))

    @property
    def has_final_norm(self) -> bool:
        if self.final_norm is None:
            return NORM_POSITIONS[self.branch_norm].has_final_norm
        return self.final_norm

    @property
    def has_residual(self) -> bool:
        """Whether a branch is added to its input."""
        return RESIDUALS[self.residual].keeps_input

    @property
    def has_batch_norm(self) -> bool:
        return super().has_batch_norm or NORMS[self.norm].is_batch_norm

    @model_validator(mode="after")
    def _widths_fit(self) -> Self:
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide embed_dim {self.embed_dim}"
            )
        if self.img_size and any(side % self.patch_size for side in self.img_size):
            height, width = self.img_size
            raise ValueError(f"patch_size {self.patch_size} does not divide {height}x{width}")
        if not self.has_residual and self.drop_path > 0:
            raise ValueError("without a residual, drop_path would erase the signal; set it to 0")
        if INITS[self.init].factors_attention and not self.attn_proj:
            raise ValueError(
                f"init {self.init!r} needs attn_proj: it ties the values to the projection"
            )
        return self

    @model_validator(mode="after")
    def _positions_fit(self) -> Self:
        row = POS_EMBEDS[self.pos_embed]
        if row.divisible is None:
            return self
        field, factor = row.divisible
        value = {"embed_dim": self.embed_dim, "head_dim": self.head_dim}[field]
        if value % factor:
            need = f"an even {field}" if factor == 2 else f"{field} divisible by {factor}"
            raise ValueError(f"pos_embed {self.pos_embed!r} needs {need}, got {value}")
        return self


class AttentionSpec(TokenSpec):
    """Families whose attention can be chosen, over a sequence with a prefix."""

    pos_embed_prefix: bool = False
    """Positions for CLS and registers too; the report adds positions before it prepends CLS."""
    reg_tokens: int = Field(0, ge=0, le=256)
    """Register tokens, learned and never read out."""
    attention: Annotated[str, RowOf(ATTENTIONS)] = "softmax"
    """How tokens attend to each other."""
    linformer_rank: int = Field(32, ge=1, le=4096)
    """Projected keys and values of ``linformer``; no more than there are tokens."""
    linformer_share: Annotated[str, RowOf(LINFORMER_SHARES)] = "heads"
    """Which projections of ``linformer`` are one matrix."""
    performer_features: int | None = Field(None, ge=1, le=65536)
    """Random features of ``performer``; d log d of a head's width d unless set."""
    performer_redraw: int = Field(1000, ge=1)
    """Optimiser steps after which ``performer`` draws other features."""
    attn_window: int = Field(3, ge=1, le=63)
    """Side of the window of ``local``, an odd number of patches."""
    attn_scale: Annotated[str, RowOf(ATTN_SCALES)] = "head_dim"
    """What scores are divided by."""

    @property
    def attention_rule(self) -> str:
        return self.attention

    @property
    def score_scale(self) -> str:
        return self.attn_scale

    @property
    def num_registers(self) -> int:
        return self.reg_tokens

    @property
    def prefix_has_positions(self) -> bool:
        return self.pos_embed_prefix

    @model_validator(mode="after")
    def _attention_fits(self) -> Self:
        """Refuse what the attention would otherwise ignore."""
        rule = f"attention {self.attention!r}"
        asked = {
            "relative positions": POS_EMBEDS[self.pos_embed].biases_scores,
            "attn_drop": self.attn_drop > 0,
            "attn_clamp": self.attn_clamp,
            "attn_scale": self.attn_scale != super().score_scale,
        }
        reasons = {
            "relative positions": f"{rule} has no matrix of scores for pos_embed"
            f" {self.pos_embed!r}",
            "attn_drop": f"{rule} has no weights that attn_drop could drop",
            "attn_clamp": f"{rule} has no attn_clamp",
            "attn_scale": f"{rule} has no temperature; leave attn_scale out",
        }
        for option, is_asked in asked.items():
            if is_asked and option not in ATTENTIONS[self.attention].takes:
                raise ValueError(reasons[option])
        if self.attn_window % 2 == 0:
            raise ValueError(f"attn_window {self.attn_window} has no middle; make it odd")
        return self


class PatchSpec(TokenSpec):
    """Families that embed patches, and whose norms may come before or after a branch."""

    patch_embed: Annotated[str, RowOf(PATCH_EMBEDS)] = "linear"
    """How pixels become tokens."""
    patch_bias: bool = True
    patch_pre_norm: bool = False
    """LayerNorm over the raw pixels of a patch (``linear`` only)."""
    patch_post_norm: bool = False
    """LayerNorm over the embedded patch."""
    stem_width: int | None = Field(None, ge=1, le=8192)
    """Channels of the layers of ``conv_tokenizer`` and ``conv_stem`` before the last, which double
    up to ``embed_dim`` unless set."""
    norm_position: Annotated[str, RowOf(NORM_POSITIONS)] = "pre"
    """Where a branch normalises."""

    @property
    def branch_norm(self) -> str:
        return self.norm_position

    @property
    def has_batch_norm(self) -> bool:
        return super().has_batch_norm or PATCH_EMBEDS[self.patch_embed].has_batch_norm

    @model_validator(mode="after")
    def _patches_fit(self) -> Self:
        row = PATCH_EMBEDS[self.patch_embed]
        if self.stem_width and not (row.is_stem and self.patch_size > 2):
            stems = " or ".join(sorted(repr(n) for n, each in PATCH_EMBEDS.items() if each.is_stem))
            raise ValueError(
                f"stem_width needs patch_embed {stems} with a patch_size of 4 or more: the last"
                " layer has embed_dim"
            )
        if self.patch_pre_norm and not row.has_pre_norm:
            able = " or ".join(repr(n) for n, each in PATCH_EMBEDS.items() if each.has_pre_norm)
            raise ValueError(
                f"patch_pre_norm needs patch_embed {able}, which cuts the patches first"
            )
        return self


class StagedSpec(TokenSpec):
    """Families whose grid of tokens shrinks from stage to stage."""

    depths: Annotated[tuple[Depth, ...], Field(min_length=1), ListToo] | None = None
    """Number of blocks in each stage; it must be set."""

    @model_validator(mode="after")
    def _stages_fit(self) -> Self:
        family = self.family
        if self.depths is None:
            raise ValueError(f"family {family!r} needs depths, the blocks of each stage: [2, 2, 6]")
        if INITS[self.init].factors_attention:
            raise ValueError(f"init {self.init!r} is for family 'vit', not {family!r}")
        return self


class GridSpec(StagedSpec):
    """Families whose attention has no prefix, and positions only as offsets on a grid."""

    @model_validator(mode="after")
    def _grid_fits(self) -> Self:
        family = self.family
        if POOLS[self.pool].has_cls_token:
            able = " or ".join(name for name, row in POOLS.items() if not row.has_cls_token)
            raise ValueError(f"family {family!r} has no CLS token; set pool to {able}")
        if not POS_EMBEDS[self.pos_embed].suits_grids:
            names = [repr(name) for name, row in POS_EMBEDS.items() if row.suits_grids]
            raise ValueError(f"family {family!r} wants pos_embed {', or '.join(reversed(names))}")
        return self
