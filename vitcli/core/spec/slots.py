"""The slots of a model: one table of rows for each slot.

A new choice needs a row here and nothing else. YAML files can name it, all commands support it
(such as ``vitcli bench attention``), and the schema and the documentation list it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from vitcli.core.spec.rows import Row, Table
from vitcli.plugin import Registry, Target

NN = "vitcli.core.nn"


@dataclass(frozen=True, kw_only=True)
class AttentionRow(Row):
    """An attention rule. ``build`` takes the token shape and makes a module (q, k, v) -> output."""

    time: str
    """Growth of the time with the number of tokens N as stated by the paper, such as ``N^2``."""
    memory: str
    """Growth of the memory of the plain definition, in the same notation."""
    has_attention_matrix: bool = True
    """Whether each token has a weight for each other token."""
    takes_bias: bool = False
    """Whether the module takes a bias of the scores, such as relative positions, after q, k, v."""
    has_kernels: bool = False
    """Whether torch has a fused kernel for this row and vitcli has a native kernel."""
    needs_grid: bool = False
    """Whether the rule works only with all patches of the grid that the model was built for."""


UNSTATED = "not stated"
"""Growth of time or memory of an attention rule that does not state it."""
SCALED = {"scale": "attn_scale"}
DROPPED = SCALED | {"dropout": "attn_drop"}
CLAMPED = DROPPED | {"clamp": "attn_clamp"}

ATTENTIONS = Registry[AttentionRow]("model.attention")
ATTENTIONS |= {
    "softmax": AttentionRow(
        about="exact attention of each token to all tokens (Vaswani et al. 2017)",
        build=f"{NN}.attention:Softmax",
        time="N^2",
        memory="N^2",
        options=CLAMPED | {"masks_diagonal": "attn_mask_diagonal"},
        takes_bias=True,
        has_kernels=True,
    ),
    "linformer": AttentionRow(
        about="low-rank projection of keys and values along the sequence (Wang et al. 2020)",
        build=f"{NN}.linear_attention:Linformer",
        time="N",
        memory="N",
        has_attention_matrix=False,
        options=CLAMPED | {"rank": "linformer_rank", "share": "linformer_share"},
        needs_grid=True,
    ),
    "performer": AttentionRow(
        about="softmax by positive orthogonal random features (Choromanski et al. 2021)",
        build=f"{NN}.linear_attention:Performer",
        time="N",
        memory="N",
        options=SCALED | {"num_features": "performer_features", "redraw_every": "performer_redraw"},
    ),
    "linear": AttentionRow(
        about="linear attention with the feature map elu(x) + 1 (Katharopoulos et al. 2020)",
        build=f"{NN}.linear_attention:LinearAttention",
        time="N",
        memory="N",
    ),
    "strided": AttentionRow(
        about="attention of each patch to its row, column, CLS and registers (Child et al. 2019)",
        build=f"{NN}.sparse:Strided",
        needs_grid=True,
        time="N^1.5",
        memory="N^1.5",
        options=DROPPED,
    ),
    "local": AttentionRow(
        about="attention of each patch to its window, CLS and registers (Beltagy et al. 2020)",
        build=f"{NN}.sparse:Local",
        needs_grid=True,
        time="N",
        memory="N",
        options=DROPPED | {"window": "attn_window"},
    ),
}

ATTN_SCALES: dict[str, Row] = {
    "head_dim": Row(
        about="division of the scores by sqrt(head_dim)", build=f"{NN}.attention:HeadDimScale"
    ),
    "embed_dim": Row(
        about="division of the scores by sqrt(embed_dim)", build=f"{NN}.attention:EmbedDimScale"
    ),
    "learned": Row(
        about="a learned temperature for each head (Lee et al. 2021)",
        build=f"{NN}.attention:LearnedScale",
    ),
}


@dataclass(frozen=True, kw_only=True)
class LinformerShareRow(Row):
    """A choice of the Linformer projections that share a matrix."""

    per_head: bool
    """Whether each head has its own projections."""
    matrices: int
    """Number of matrices: 1 if keys and values share a projection, otherwise 2."""


LINFORMER_SHARES: dict[str, LinformerShareRow] = {
    "heads": LinformerShareRow(
        about="one projection for the keys and one for the values of all heads",
        per_head=False,
        matrices=2,
    ),
    "none": LinformerShareRow(
        about="one projection for the keys and one for the values of each head",
        per_head=True,
        matrices=2,
    ),
    "kv": LinformerShareRow(
        about="one projection for the keys and values of all heads", per_head=False, matrices=1
    ),
}


@dataclass(frozen=True, kw_only=True)
class PosEmbedRow(Row):
    """A position embedding. ``build`` makes a table that is added to the tokens of a shape."""

    heads: Target | None = None
    """Target that makes the part inside attention from the token shape; None if there is none."""
    biases_scores: bool = False
    """Whether the part inside attention adds a bias to the scores. It needs an attention matrix."""
    divisible: tuple[Literal["embed_dim", "head_dim"], int] | None = None
    """A width and the number that must divide it; None if any width is allowed."""
    no_table: str | None = None
    """Reason why the model has no table of positions to draw; None if it has one."""

    @property
    def suits_grids(self) -> bool:
        """Return whether stages can differ: the row needs neither a table nor a rotation."""
        return self.biases_scores or not (self.build or self.heads)


POS_EMBEDS = Registry[PosEmbedRow]("model.pos_embed")
POS_EMBEDS |= {
    "none": PosEmbedRow(about="no positions", no_table="the model has no positions"),
    "learned": PosEmbedRow(
        about="a learned vector for each position", build=f"{NN}.pos_embed:Learned"
    ),
    "sincos1d": PosEmbedRow(
        about="fixed sines and cosines in reading order (Vaswani et al. 2017)",
        build=f"{NN}.pos_embed:sincos1d_table",
        divisible=("embed_dim", 2),
    ),
    "sincos2d": PosEmbedRow(
        about="fixed sines and cosines of the row and the column",
        build=f"{NN}.pos_embed:sincos2d_table",
        divisible=("embed_dim", 4),
    ),
    "rope2d": PosEmbedRow(
        about="rotation of queries and keys by row and column (Su et al. 2021)",
        heads=f"{NN}.pos_embed:Rope2d",
        divisible=("head_dim", 4),
        no_table="rope2d rotates q and k and has no table of positions",
    ),
    "relative": PosEmbedRow(
        about="a learned bias of the scores for each head and relative offset (Liu et al. 2021)",
        heads=f"{NN}.pos_embed:RelativeBias",
        biases_scores=True,
    ),
}

BIAS = {"bias": "patch_bias"}


@dataclass(frozen=True, kw_only=True)
class PatchEmbedRow(Row):
    """A patch embedding. ``build`` takes (channels, patch size, width of a token)."""

    options: Mapping[str, str] = field(default_factory=lambda: BIAS)
    cuts_patches: bool = False
    """Whether the same linear map embeds each patch on its own."""
    has_batch_norm: bool = False
    min_patch_size: int = 1


PATCH_EMBEDS = Registry[PatchEmbedRow]("model.patch_embed")
PATCH_EMBEDS |= {
    "linear": PatchEmbedRow(
        about="a linear map of each patch (Dosovitskiy et al. 2021)",
        build=f"{NN}.patch_embed:LinearPatches",
        options=BIAS | {"pre_norm": "patch_pre_norm"},
        cuts_patches=True,
    ),
    "conv": PatchEmbedRow(
        about="the same map as a convolution whose kernel and stride are the patch size",
        build=f"{NN}.patch_embed:ConvPatches",
        cuts_patches=True,
    ),
    "conv_stem": PatchEmbedRow(
        about="3x3 convolutions of stride 2 with batch norm and ReLU (Xiao et al. 2021)",
        build=f"{NN}.patch_embed:ConvStem",
        options=BIAS | {"width": "stem_width"},
        has_batch_norm=True,
    ),
    "conv_tokenizer": PatchEmbedRow(
        about="3x3 convolutions with ReLU and max-pooling (Hassani et al. 2021)",
        build=f"{NN}.patch_embed:ConvTokenizer",
        options=BIAS | {"width": "stem_width"},
    ),
    "whitened_stages": PatchEmbedRow(
        about="fixed whitening filters and stages of two 3x3 convolutions (Jordan 2024)",
        build=f"{NN}.conv_stages:WhitenedStages",
        options={"width": "stem_width"},
        has_batch_norm=True,
    ),
    "shifted": PatchEmbedRow(
        about="a linear map of each patch and its four diagonal shifts (Lee et al. 2021)",
        build=f"{NN}.patch_embed:ShiftedPatches",
        min_patch_size=2,
    ),
}


@dataclass(frozen=True, kw_only=True)
class FfnRow(Row):
    """A feed-forward network. ``build`` takes the token shape."""

    options: Mapping[str, str] = field(
        default_factory=lambda: {"hidden_dim": "hidden_dim", "dropout": "proj_drop"}
    )
    needs_grid: bool = False
    """Whether the network works only with all patches of the grid that the model was built for."""


FFNS = Registry[FfnRow]("model.ffn")
FFNS |= {
    "gelu": FfnRow(about="two linear layers with GELU between them", build=f"{NN}.ffn:Mlp"),
    "relu": FfnRow(about="two linear layers with ReLU between them", build=f"{NN}.ffn:relu_mlp"),
    "swiglu": FfnRow(
        about="a gated linear unit with SiLU (Shazeer 2020)", build=f"{NN}.ffn:SwiGlu"
    ),
    "depthwise": FfnRow(
        about="GELU layers with a 3x3 depthwise convolution between them (Lu et al. 2022)",
        build=f"{NN}.ffn:DepthwiseMlp",
        needs_grid=True,
    ),
    "none": FfnRow(about="no feed-forward branch"),
}


@dataclass(frozen=True, kw_only=True)
class NormRow(Row):
    """A normalisation layer. ``build`` takes the width of a token."""

    options: Mapping[str, str] = field(default_factory=lambda: {"eps": "norm_eps"})
    is_batch_norm: bool = False
    """Whether the statistics cover all tokens and images of a batch."""


NORMS = Registry[NormRow]("model.norm")
NORMS |= {
    "layer_norm": NormRow(
        about="LayerNorm over the features of each token", build="torch.nn:LayerNorm"
    ),
    "batch_norm": NormRow(
        about="BatchNorm over batch and tokens (Ioffe and Szegedy 2015)",
        build=f"{NN}.norm:TokenBatchNorm",
        is_batch_norm=True,
    ),
    "rms_norm": NormRow(about="RMSNorm over the features of each token", build="torch.nn:RMSNorm"),
    "none": NormRow(about="no normalisation, not even before the head", build="torch.nn:Identity"),
}


@dataclass(frozen=True, kw_only=True)
class NormPositionRow(Row):
    """A place of the normalisation. ``build`` takes (norm, inner layer, join, last layer)."""

    has_final_norm: bool
    """Whether a model has a norm before its head if ``final_norm`` is unset."""


NORM_POSITIONS: dict[str, NormPositionRow] = {
    "pre": NormPositionRow(
        about="before attention and FFN", build=f"{NN}.block:PreNormBranch", has_final_norm=True
    ),
    "post": NormPositionRow(
        about="after the residual sum (Vaswani et al. 2017)",
        build=f"{NN}.block:PostNormBranch",
        has_final_norm=False,
    ),
}


@dataclass(frozen=True, kw_only=True)
class ResidualRow(Row):
    """A way to combine a branch with its input. ``build`` is (input, branch) -> output."""

    keeps_input: bool = True
    """Whether the input is part of the output."""


RESIDUALS: dict[str, ResidualRow] = {
    "add": ResidualRow(about="input plus branch", build="torch:add"),
    "none": ResidualRow(
        about="the branch alone", build=f"{NN}.block:keep_branch", keeps_input=False
    ),
}


@dataclass(frozen=True, kw_only=True)
class PoolRow(Row):
    """A way to pool the tokens for the head. ``build`` takes the token shape."""

    reads: str
    """Name of the pooled token in figures."""
    has_cls_token: bool = False


POOLS = Registry[PoolRow]("model.pool")
POOLS |= {
    "cls": PoolRow(
        about="the CLS token",
        build=f"{NN}.pool:ClsPool",
        reads="CLS, the read-out",
        has_cls_token=True,
    ),
    "mean": PoolRow(
        about="the mean of the patch tokens",
        build=f"{NN}.pool:MeanPool",
        reads="read-out, the mean of the patches",
    ),
    "seq": PoolRow(
        about="a learned weighted mean of the patch tokens (Hassani et al. 2021)",
        build=f"{NN}.pool:SequencePool",
        reads="read-out, a weighted mean of the patches",
    ),
}

HEADS: dict[str, Row] = {
    "linear": Row(about="one linear layer", build="vitcli.core.ops.backend:Linear"),
    "mlp": Row(
        about="two linear layers with GELU between them; the hidden width is the token width",
        build=f"{NN}.pool:mlp_head",
    ),
}


@dataclass(frozen=True, kw_only=True)
class InitRow(Row):
    """A scheme of initial weights. ``build`` is the function (model, draws) that fills them."""

    factors_attention: bool = False
    """Whether the scheme factors products of attention matrices, which must be square."""
    needs_table: bool = False
    """Whether the scheme shapes the attention between the vectors of a table of positions."""


INITS: dict[str, InitRow] = {
    "trunc_normal": InitRow(
        about="truncated normal with standard deviation 0.02", build=f"{NN}.init:trunc_normal"
    ),
    "xavier_normal": InitRow(
        about="normal with a variance set by the widths of each layer (Glorot and Bengio 2010)",
        build=f"{NN}.init:xavier_normal",
    ),
    "mimetic": InitRow(
        about="attention weights that resemble trained ones (Trockman and Kolter 2023)",
        build=f"{NN}.init:mimetic",
        factors_attention=True,
    ),
    "impulse": InitRow(
        about="each head attends to one neighbour, as a random 3x3 filter (Zheng et al. 2025)",
        build=f"{NN}.impulse:impulse",
        factors_attention=True,
        needs_table=True,
    ),
}

SLOTS: dict[str, Table] = {
    "patch_embed": PATCH_EMBEDS,
    "pos_embed": POS_EMBEDS,
    "attention": ATTENTIONS,
    "attn_scale": ATTN_SCALES,
    "linformer_share": LINFORMER_SHARES,
    "ffn": FFNS,
    "norm": NORMS,
    "norm_position": NORM_POSITIONS,
    "residual": RESIDUALS,
    "pool": POOLS,
    "head": HEADS,
    "init": INITS,
}
"""The table of each slot, by the name of the model field."""
