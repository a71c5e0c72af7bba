"""Base classes of the specs of model families."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from vitcli.core.spec import slots
from vitcli.core.spec.rows import AcceptsList, Depth, Rate, RowOf, Size, Spec


class ModelSpec(Spec):
    """Fields of every model. ``model_spec`` builds the spec of a family."""

    family: str
    """Family of the model; it determines the other fields."""
    img_size: Size | None = None
    """Height and width in pixels, or one integer for a square; unset uses the size of the data
    set."""
    in_chans: int | None = Field(None, ge=1, le=64)
    """Number of input channels; unset uses the channels of the data set."""
    num_classes: int | None = Field(None, ge=1, le=100_000)
    """Number of classes; unset uses the classes of the data set."""

    has_blocks: ClassVar[bool] = True
    """Whether the family has transformer blocks, which gradient checkpointing can recompute."""
    is_convolutional: ClassVar[bool] = False
    """Whether the family has batch norm for all values of its fields."""
    min_batch: ClassVar[int] = 1
    """Minimum number of images in a training batch."""

    @property
    def has_residual(self) -> bool:
        return True

    @property
    def is_pretrained(self) -> bool:
        """Return whether the family itself brings trained weights."""
        return False

    @property
    def patch_side(self) -> int:
        """Return the side of a patch in pixels, of which the sides of an image are multiples."""
        return 1

    @property
    def has_batch_norm(self) -> bool:
        """Return whether batch norm makes an image's training output depend on its batch."""
        return self.is_convolutional

    @property
    def has_block_matrices(self) -> bool:
        """Return whether the model has matrices inside transformer blocks, which Muon needs."""
        return self.has_blocks

    @property
    def has_random_blocks(self) -> bool:
        """Return whether the blocks draw random numbers in training."""
        return False

    @property
    def no_other_grid(self) -> str | None:
        """Return why the model needs all patches of its own grid; None if any patches will do."""
        return f"family {self.family!r} needs images of its own size"


class TokenSpec(ModelSpec):
    """Fields of all models that turn an image into tokens."""

    patch_size: int = Field(4, ge=1, le=256)
    """Side of a square patch in pixels."""
    embed_dim: int = Field(192, ge=1, le=8192)
    """Width of a token. In families with stages, the width in the first stage; each later stage
    doubles it."""
    num_heads: int = Field(3, ge=1, le=256)
    """Number of attention heads. In families with stages, the heads of the first stage; each later
    stage doubles them."""
    pos_embed: Annotated[str, RowOf(slots.POS_EMBEDS)] = "learned"
    """Position embedding; ``none`` gives the model no positions."""
    attn_clamp: bool = False
    """Clamp attention scores to [-1e9, 1e4], as the course report does. Off by default, because the
    softmax needs no clamp."""
    qkv_bias: bool = True
    """Bias of the query, key and value projections."""
    attn_proj: bool = True
    """Output projection after the attention heads."""
    proj_bias: bool = True
    """Bias of the output projection of attention."""
    ffn: Annotated[str, RowOf(slots.FFNS)] = "gelu"
    """Feed-forward network of each block."""
    mlp_ratio: float = Field(4.0, gt=0, le=64)
    """Hidden width of the feed-forward network as a multiple of ``embed_dim``."""
    norm: Annotated[str, RowOf(slots.NORMS)] = "layer_norm"
    """Normalisation layer."""
    norm_eps: float = Field(1e-6, ge=0, le=1)
    """Epsilon that the normalisation adds to the variance."""
    final_norm: bool | None = None
    """Normalisation before the head; unset adds it to pre-norm models only."""
    residual: Annotated[str, RowOf(slots.RESIDUALS)] = "add"
    """How the outputs of attention and FFN are combined with their inputs."""
    layer_scale_init: float | None = Field(None, gt=0, le=1)
    """Initial value of LayerScale; unset uses no LayerScale."""
    drop_path: Rate = 0.0
    """Stochastic-depth rate in the last block. It grows linearly from 0 in the first block."""
    attn_drop: Rate = 0.0
    """Dropout rate of the attention weights."""
    proj_drop: Rate = 0.0
    """Dropout rate after the output projection of attention and after both layers of the FFN."""
    pos_drop: Rate = 0.0
    """Dropout rate of the embedded tokens, after positions are added."""
    pool: Annotated[str, RowOf(slots.POOLS)] = "cls"
    """How the tokens are pooled for the head."""
    head: Annotated[str, RowOf(slots.HEADS)] = "linear"
    """Layers from the pooled token to the class logits."""
    init: Annotated[str, RowOf(slots.INITS)] = "trunc_normal"
    """Scheme of the initial weights."""

    def row_of(self, slot: str) -> Any:
        """Return the chosen row of a slot; a family without the slot has its table's first row."""
        table = slots.SLOTS[slot]
        return table[getattr(self, slot, next(iter(table)))]

    @property
    def patch_side(self) -> int:
        return self.patch_size

    @property
    def num_prefix_tokens(self) -> int:
        """Return the number of tokens before the patches: CLS and registers."""
        return int(slots.POOLS[self.pool].has_cls_token)

    @property
    def hidden_dim(self) -> int:
        return max(1, int(self.embed_dim * self.mlp_ratio))

    @property
    def has_final_norm(self) -> bool:
        default: bool = self.row_of("norm_position").has_final_norm
        return default if self.final_norm is None else self.final_norm

    @property
    def has_residual(self) -> bool:
        return slots.RESIDUALS[self.residual].keeps_input

    @property
    def has_batch_norm(self) -> bool:
        return super().has_batch_norm or slots.NORMS[self.norm].is_batch_norm

    @property
    def has_random_blocks(self) -> bool:
        return max(self.drop_path, self.attn_drop, self.proj_drop) > 0

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide embed_dim {self.embed_dim}"
            )
        if self.img_size and any(side % self.patch_size for side in self.img_size):
            height, width = self.img_size
            raise ValueError(f"patch_size {self.patch_size} does not divide {height}x{width}")
        if not self.has_residual and self.drop_path > 0:
            raise ValueError("without a residual, drop_path would erase the signal; set it to 0")
        return self

    @model_validator(mode="after")
    def _check_init(self) -> Self:
        row, scheme = slots.INITS[self.init], f"init {self.init!r}"
        if row.factors_attention and not self.attn_proj:
            raise ValueError(f"{scheme} needs attn_proj: it fills values and projection together")
        if row.needs_table and slots.POS_EMBEDS[self.pos_embed].build is None:
            able = " or ".join(repr(name) for name, each in slots.POS_EMBEDS.items() if each.build)
            raise ValueError(
                f"{scheme} needs pos_embed {able}: it shapes the attention between their vectors"
            )
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Self:
        row = slots.POS_EMBEDS[self.pos_embed]
        if row.divisible is None:
            return self
        field, factor = row.divisible
        value = self.embed_dim if field == "embed_dim" else self.embed_dim // self.num_heads
        if value % factor:
            need = f"an even {field}" if factor == 2 else f"{field} divisible by {factor}"
            raise ValueError(f"pos_embed {self.pos_embed!r} needs {need}, got {value}")
        return self


class AttentionSpec(TokenSpec):
    """Fields of families with a choice of attention and with prefix tokens."""

    pos_embed_prefix: bool = False
    """Positions for CLS and registers too. Off by default: the course report adds positions to the
    patches before it prepends CLS."""
    reg_tokens: int = Field(0, ge=0, le=256)
    """Number of register tokens: learned tokens that the head never reads."""
    attention: Annotated[str, RowOf(slots.ATTENTIONS)] = "softmax"
    """Attention rule of each block."""
    linformer_rank: int = Field(32, ge=1, le=4096)
    """Number of projected keys and values of ``linformer``, limited to the number of tokens."""
    linformer_share: Annotated[str, RowOf(slots.LINFORMER_SHARES)] = "heads"
    """Which projections of ``linformer`` share a matrix."""
    performer_features: int | None = Field(None, ge=1, le=65536)
    """Number of random features of ``performer``; unset uses d ln d for heads of width d."""
    performer_redraw: int = Field(1000, ge=1)
    """Number of optimiser steps after which ``performer`` draws new random features."""
    attn_window: int = Field(3, ge=1, le=63)
    """Side of the window of ``local`` in patches; an odd number."""
    attn_scale: Annotated[str, RowOf(slots.ATTN_SCALES)] = "head_dim"
    """Divisor of the attention scores."""
    attn_mask_diagonal: bool = False
    """Mask the diagonal of the attention scores, so that no token attends to itself. With
    ``attn_scale: learned``, this is Locality Self-Attention (Lee et al. 2021)."""

    @property
    def num_prefix_tokens(self) -> int:
        return super().num_prefix_tokens + self.reg_tokens

    @model_validator(mode="after")
    def _check_attention(self) -> Self:
        row, rule = slots.ATTENTIONS[self.attention], f"attention {self.attention!r}"
        if slots.INITS[self.init].needs_table and not row.has_attention_matrix:
            raise ValueError(
                f"init {self.init!r} shapes the attention between patches, which {rule} does not"
                " have"
            )
        if slots.POS_EMBEDS[self.pos_embed].biases_scores and not row.takes_bias:
            raise ValueError(f"{rule} has no matrix of scores for pos_embed {self.pos_embed!r}")
        for field in ("attn_drop", "attn_clamp", "attn_scale", "attn_mask_diagonal"):
            default = type(self).model_fields[field].default
            if getattr(self, field) != default and not row.takes(field):
                raise ValueError(f"{rule} has no {field}; leave it out")
        if self.attn_window % 2 == 0:
            raise ValueError(
                f"attn_window must be odd, so that the window has a centre; got {self.attn_window}"
            )
        return self


class PatchSpec(TokenSpec):
    """Fields of families that embed patches and offer pre-norm and post-norm."""

    patch_embed: Annotated[str, RowOf(slots.PATCH_EMBEDS)] = "linear"
    """Patch embedding: the layers that turn pixels into tokens."""
    patch_bias: bool = True
    """Bias of the patch embedding."""
    patch_pre_norm: bool = False
    """LayerNorm over the raw pixels of each patch (``linear`` only)."""
    patch_post_norm: bool = False
    """LayerNorm over each embedded patch."""
    stem_width: int | None = Field(None, ge=1, le=8192)
    """Channels of all layers of ``conv_tokenizer`` and ``conv_stem``, or stages of
    ``whitened_stages``, except the last. Unset doubles the channels from layer to layer, up to
    ``embed_dim`` in the last layer."""
    norm_position: Annotated[str, RowOf(slots.NORM_POSITIONS)] = "pre"
    """Place of the normalisation in a residual branch."""

    @property
    def has_batch_norm(self) -> bool:
        return super().has_batch_norm or slots.PATCH_EMBEDS[self.patch_embed].has_batch_norm

    @model_validator(mode="after")
    def _check_patches(self) -> Self:
        row = slots.PATCH_EMBEDS[self.patch_embed]
        if self.patch_size < row.min_patch_size:
            raise ValueError(
                f"patch_embed {self.patch_embed!r} needs a patch_size of {row.min_patch_size} or"
                f" more, got {self.patch_size}"
            )
        for field in ("stem_width", "patch_pre_norm"):
            if getattr(self, field) and not row.takes(field):
                raise ValueError(f"patch_embed {self.patch_embed!r} has no {field}; leave it out")
        if self.stem_width and self.patch_size <= 2:
            raise ValueError("stem_width needs a patch_size of 4 or more; leave it out")
        return self


class StagedSpec(TokenSpec):
    """Fields of families with stages, where each stage halves the grid of tokens."""

    depths: Annotated[tuple[Depth, ...], Field(min_length=1), AcceptsList] | None = None
    """Number of blocks in each stage, such as [2, 2, 6]. There is no default: it must be set."""

    @model_validator(mode="after")
    def _check_stages(self) -> Self:
        family = self.family
        if self.depths is None:
            raise ValueError(f"family {family!r} needs depths, such as [2, 2, 6]")
        if slots.INITS[self.init].factors_attention:
            raise ValueError(f"init {self.init!r} is only for family 'vit', not for {family!r}")
        return self


class GridSpec(StagedSpec):
    """Fields of families without prefix tokens, whose positions are relative offsets or none."""

    @model_validator(mode="after")
    def _check_grid(self) -> Self:
        family = self.family
        if slots.POOLS[self.pool].has_cls_token:
            able = " or ".join(name for name, row in slots.POOLS.items() if not row.has_cls_token)
            raise ValueError(f"family {family!r} has no CLS token; set pool to {able}")
        if not slots.POS_EMBEDS[self.pos_embed].suits_grids:
            names = [repr(name) for name, row in slots.POS_EMBEDS.items() if row.suits_grids]
            raise ValueError(f"family {family!r} needs pos_embed {' or '.join(reversed(names))}")
        return self
