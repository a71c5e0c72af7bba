"""Everything that may vary in an experiment, as frozen, checked data. No torch, no YAML."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
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


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Pixels = Annotated[int, Field(ge=1, le=1024)]
Size = Annotated[tuple[Pixels, Pixels], BeforeValidator(_pair), PlainSerializer(_short)]
"""(height, width) in pixels; one integer is a square."""
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Channels = Annotated[tuple[float, ...], Field(min_length=1, max_length=64), BeforeValidator(_tuple)]


FIELDS: dict[str, tuple[str, ...]] = {"resnet18": ("family", "img_size", "in_chans", "num_classes")}
"""The fields of a model that a family has; one that is not named here has them all."""


class ModelSpec(Spec):
    """A model; each named slot of a Vision Transformer is filled from a table in ``core.nn``."""

    family: Literal["vit", "resnet18"] = "vit"
    """Vision Transformer, or ResNet-18 with a stem for small images and no fields but sizes."""
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
    embed_dim: int = Field(192, ge=1, le=8192)
    depth: int = Field(6, ge=0, le=256)
    """Number of transformer blocks."""
    num_heads: int = Field(3, ge=1, le=256)
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
    def num_prefix_tokens(self) -> int:
        return (self.pool == "cls") + self.reg_tokens

    @model_validator(mode="after")
    def _family_has_them(self) -> Self:
        known = FIELDS.get(self.family, tuple(type(self).model_fields))
        for name, field in type(self).model_fields.items():
            default = field.get_default(call_default_factory=True)
            if name not in known and getattr(self, name) != default:
                raise ValueError(f"family {self.family!r} has no {name}; leave it out")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.family != "vit":
            return self
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide embed_dim {self.embed_dim}"
            )
        if self.img_size and any(side % self.patch_size for side in self.img_size):
            height, width = self.img_size
            raise ValueError(f"patch_size {self.patch_size} does not divide {height}x{width}")
        if self.residual == "none" and self.drop_path > 0:
            raise ValueError("without a residual, drop_path would erase the signal; set it to 0")
        if self.patch_pre_norm and self.patch_embed != "linear":
            raise ValueError(
                "patch_pre_norm needs patch_embed 'linear', which cuts the patches first"
            )
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
        self._attention_fits()
        if self.init == "mimetic" and not self.attn_proj:
            raise ValueError("init 'mimetic' needs attn_proj: it ties the values to the projection")
        return self

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


class AugmentSpec(Spec):
    """Training-time changes of the images. Everything is off by default."""

    crop_padding: int = Field(0, ge=0, le=256)
    """Pad by so many zero pixels and crop back at random."""
    flip: Literal["none", "random", "alternating"] = "none"
    """Horizontal flip: a coin per image and epoch, or a coin once and then every other epoch."""
    policy: Literal["none", "rand_augment", "trivial_augment"] = "none"
    rand_num_ops: int = Field(2, ge=1, le=16)
    rand_magnitude: int = Field(9, ge=0, le=30)
    """RandAugment's magnitude on its scale of 0 to 30."""
    erasing: Probability = 0.0
    """Probability of random erasing."""
    mixup: float = Field(0.0, ge=0, le=10)
    """Alpha of MixUp's Beta distribution; 0 switches it off."""
    cutmix: float = Field(0.0, ge=0, le=10)
    """Alpha of CutMix's Beta distribution; 0 switches it off."""
    mix_prob: Probability = 1.0
    """Probability that an image is mixed at all."""
    mix_switch_prob: Probability = 0.5
    """Probability of CutMix where both are on."""
    mix_off_epoch: int | None = Field(None, ge=0)
    """From this epoch (counted from 0) on, no mixing."""

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0


DATA_SETS = ("shapes", "cifar10", "cifar100", "svhn", "fashion-mnist", "mnist")


class DataSpec(Spec):
    """Which images, and how they are shown to the model."""

    name: str = "shapes"
    """shapes, cifar10, cifar100, svhn, fashion-mnist, mnist, or imagefolder:PATH."""
    resize: Size | None = None
    """Resize every image to this size once, when the data is read."""
    val_split: int = Field(0, ge=0)
    """Hold out so many training images, balanced and chosen by content, for tuning."""
    mean: Channels | None = None
    """Channel means of pixels in [0, 1]; the training set's own unless set."""
    std: Channels | None = None
    """Channel standard deviations; the training set's own unless set."""
    class_names: Annotated[tuple[str, ...], BeforeValidator(_tuple)] | None = None
    """Names of the classes, in label order; the data set's unless set."""
    augment: AugmentSpec = AugmentSpec()

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in DATA_SETS and not name.partition("imagefolder:")[2]:
            raise ValueError(f"{name!r} is none of {', '.join(DATA_SETS)}, imagefolder:PATH")
        return name

    @field_validator("std")
    @classmethod
    def _is_positive(cls, std: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if std and min(std) <= 0:
            raise ValueError(f"standard deviations are positive, got {list(std)}")
        return std


class OptimSpec(Spec):
    """The optimiser and its learning-rate schedule."""

    name: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    """Adam adds weight_decay to the gradient, AdamW decays weights; Muon takes the matrices."""
    lr: float = Field(1e-3, gt=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.05, ge=0, le=10)
    decay_all: bool = False
    """Decay norms, biases, positions and tokens too, as a bare torch.optim call does."""
    momentum: Rate = 0.9
    """For SGD."""
    nesterov: bool = False
    """For SGD."""
    betas: Annotated[tuple[Rate, Rate], BeforeValidator(_tuple)] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0, le=1)
    muon_lr: float = Field(0.02, gt=0, le=100)
    """Peak rate of the matrices under Muon; the other parameters take ``lr`` with AdamW."""
    muon_momentum: Rate = 0.95
    """Nesterov momentum of the matrices under Muon."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_epochs: float = Field(0.0, ge=0, le=100_000)
    """Linear warm-up; may be a fraction of an epoch."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Where the schedule ends, as a share of the peak."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Clip the gradient's norm; null does not clip."""


class TrainSpec(Spec):
    """How long, in what portions and in which arithmetic."""

    epochs: int = Field(10, ge=0, le=100_000)
    batch_size: int = Field(128, ge=1, le=65536)
    """Images per optimiser step; the last, smaller batch of an epoch is dropped."""
    accumulate: int = Field(1, ge=1, le=4096)
    """Cut each batch into so many parts and add their gradients, to save memory."""
    label_smoothing: Rate = 0.0
    ema_decay: Rate | None = None
    """Evaluate and keep an exponential moving average of the weights."""
    eval_every: int = Field(1, ge=1)
    """Epochs between evaluations; the last epoch is always evaluated."""
    init: str | None = None
    """A run whose weights to start from; its head is replaced where the classes differ."""
    limit_batches: int | None = Field(None, ge=1)
    """Only so many batches an epoch and an evaluation; for a quick try."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast type; auto is bf16 where the device computes in it, and fp32 elsewhere."""
    compile: bool | None = None
    """torch.compile; unless set, on for CUDA only."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """native: compiled on the spot, for bf16 on a CPU with AMX, where auto takes them."""
    grad_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, the same gradients."""

    @property
    def wanted_kernels(self) -> str:
        """torch.compile makes kernels of its own."""
        return "torch" if self.compile else self.kernels

    def compiles_on(self, device_type: str) -> bool:
        """Whether the model is compiled on a kind of device (cpu, cuda, mps)."""
        return device_type == "cuda" if self.compile is None else self.compile

    @model_validator(mode="after")
    def _parts_divide(self) -> Self:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}"
            )
        if self.kernels == "native" and self.compile:
            raise ValueError("torch.compile cannot see into kernels 'native'; drop one of the two")
        return self


class ExperimentSpec(Spec):
    """One training run."""

    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    optim: OptimSpec = OptimSpec()
    train: TrainSpec = TrainSpec()
    seed: int = Field(0, ge=0, lt=2**31)

    @model_validator(mode="after")
    def _blocks_are_there(self) -> Self:
        """What works on transformer blocks is refused for a model without any."""
        family = self.model.family
        if self.train.grad_checkpointing and family != "vit":
            raise ValueError(
                f"train.grad_checkpointing: family {family!r} has no blocks to recompute"
            )
        if self.train.batch_size == self.train.accumulate and family != "vit":
            raise ValueError("train.accumulate: batch norm needs 2 images at a time, this leaves 1")
        if self.optim.name == "muon" and (family != "vit" or self.model.depth == 0):
            raise ValueError(
                "optim.name: muon takes the matrices of transformer blocks, and the model has none"
            )
        return self
