"""Which images a model is trained on, and how they are changed on the way."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from vitcli.core.spec.base import Channels, ListToo, Probability, Size, Spec


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
