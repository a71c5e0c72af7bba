"""Everything that may vary in an experiment, as frozen, checked data. No torch, no YAML."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from vitcli.core.model_spec import (
    FIELDS,
    Channels,
    ListToo,
    ModelSpec,
    Probability,
    Rate,
    Size,
    Spec,
)

__all__ = [
    "DATA_SETS",
    "FIELDS",
    "AugmentSpec",
    "DataSpec",
    "ExperimentSpec",
    "ModelSpec",
    "OptimSpec",
    "Size",
    "Spec",
    "TrainSpec",
]


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
    class_names: Annotated[tuple[str, ...], ListToo] | None = None
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
    betas: Annotated[tuple[Rate, Rate], ListToo] = (0.9, 0.999)
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


class TaskSpec(Spec):
    """What is learned."""

    name: str = "classify"


class ExperimentSpec(Spec):
    """One training run."""

    model: ModelSpec = ModelSpec()
    data: DataSpec = DataSpec()
    optim: OptimSpec = OptimSpec()
    train: TrainSpec = TrainSpec()
    seed: int = Field(0, ge=0, lt=2**31)

    @property
    def task(self) -> TaskSpec:
        return TaskSpec()

    @property
    def refusal(self) -> str | None:
        """Why a new training with these fields is refused; None where it is not.

        Runs of earlier versions may hold such a configuration, so it is valid in itself.
        """
        if self.train.accumulate > 1 and self.model.has_batch_norm:
            return (
                "train.accumulate: batch norm would see only a part of each batch, which changes"
                " the gradients; set train.accumulate to 1"
            )
        return None

    @model_validator(mode="after")
    def _blocks_are_there(self) -> Self:
        """What works on transformer blocks is refused for a model without any."""
        family = self.model.family
        if self.train.grad_checkpointing and family == "resnet18":
            raise ValueError(
                f"train.grad_checkpointing: family {family!r} has no blocks to recompute"
            )
        if self.train.batch_size == 1 and family == "resnet18":
            raise ValueError("train.batch_size: batch norm needs 2 images at a time")
        if self.optim.name == "muon" and (
            family == "resnet18" or (family == "vit" and self.model.depth == 0)
        ):
            raise ValueError(
                "optim.name: muon takes the matrices of transformer blocks, and the model has none"
            )
        return self
