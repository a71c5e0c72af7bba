"""The data set of an experiment, the formats of own pictures, and the augmentation of images.

Own pictures are ``PREFIX:PATH``, with one row of ``DATA_READERS`` for each prefix.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from vitcli.core.spec.rows import AcceptsList, Channels, Probability, Row, RowOf, Size, Spec
from vitcli.plugin import CORE, Registry, Target, missing_for

FORMATS = "vitcli.runner.data.formats"


@dataclass(frozen=True, kw_only=True)
class DataReader(Row):
    """A format of pictures with labels.

    ``build`` takes the text after the prefix. It returns a ``PictureFolder``, or arrays by name, as
    in a file of ``npz``. It raises InputError if it cannot.
    """

    example: str
    """What to type after ``--data``."""
    is_path: bool = True
    """Whether the text after the prefix is the path of a file or folder."""
    fetch: Target | None = None
    """What downloads it for ``vitcli data get``, if it is not on this machine: takes the text after
    the prefix, whether downloads are forbidden, and a function for messages."""
    kept: Target | None = None
    """What returns the folders of the cache that hold a copy of its files: takes what ``build``
    takes."""
    packages: tuple[str, ...] = ()
    """Packages that it needs. They belong to the extra ``hub``."""


DATA_READERS = Registry[DataReader]("data.name")
DATA_READERS |= {
    "imagefolder": DataReader(
        about="a folder with train/<class>/*, test/<class>/* and val/<class>/*, or with <class>/*",
        build="vitcli.runner.data.folder:list_folder",
        example="imagefolder:pictures",
    ),
    "csv": DataReader(
        about="a table with the columns path and label, and perhaps split and group",
        build=f"{FORMATS}.csv_file:list_csv",
        example="csv:labels.csv",
    ),
    "npz": DataReader(
        about="NumPy arrays: images and labels, or train_images, train_labels, test_images ...",
        build=f"{FORMATS}.npz:open_npz",
        example="npz:bloodmnist.npz",
    ),
}


def split_name(name: str) -> tuple[DataReader, str] | None:
    """Return the row and the text after the prefix; None for a named data set, or without a row."""
    prefix, _, text = name.partition(":")
    return (DATA_READERS[prefix], text) if prefix in DATA_READERS and text else None


def list_own() -> str:
    return ", ".join(
        f"{name}:{'PATH' if row.is_path else 'NAME'}" for name, row in DATA_READERS.items()
    )


@dataclass(frozen=True, kw_only=True)
class PolicyRow(Row):
    """An augmentation policy. ``build`` of an own row maps (images, draws) to images."""

    draws: int = 0
    """Number of uniform random numbers that an own row receives for each image."""


POLICIES = Registry[PolicyRow]("data.augment.policy")
POLICIES |= {
    "none": PolicyRow(about="no policy"),
    "rand_augment": PolicyRow(about="random operations of one strength (Cubuk et al. 2019)"),
    "trivial_augment": PolicyRow(about="one random operation (Mueller and Hutter 2021)"),
}


def _is_drawable(alpha: float) -> float:
    if 0 < alpha < MIN_ALPHA:
        raise ValueError(f"write 0 to switch it off, or at least {MIN_ALPHA}")
    return alpha


MIN_ALPHA = 0.01
"""Below it, a draw of the Beta distribution underflows to shares near one half."""
Alpha = Annotated[float, Field(ge=0, le=10), AfterValidator(_is_drawable)]


class AugmentSpec(Spec):
    """Augmentation of the training images. All augmentation is off by default."""

    crop_padding: int = Field(0, ge=0, le=256)
    """Zero pixels on each side before a random crop of the original size; 0 does not crop."""
    flip: Literal["none", "random", "alternating"] = "none"
    """Horizontal flip. ``random`` flips each image with probability 0.5 in each epoch.
    ``alternating`` chooses at random in the first epoch and then flips in every other epoch."""
    policy: Annotated[str, RowOf(POLICIES)] = "none"
    """Automatic augmentation policy; ``none`` applies no policy."""
    rand_num_ops: int = Field(2, ge=1, le=16)
    """Number of operations that RandAugment applies to each image."""
    rand_magnitude: int = Field(9, ge=0, le=30)
    """Magnitude of RandAugment's operations, from 0 to 30."""
    erasing: Probability = 0.0
    """Probability of random erasing for each image; 0 switches it off."""
    mixup: Alpha = 0.0
    """Alpha of MixUp's Beta distribution; 0 switches it off."""
    cutmix: Alpha = 0.0
    """Alpha of CutMix's Beta distribution; 0 switches it off."""
    mix_prob: Probability = 1.0
    """Probability that an image is mixed, if MixUp or CutMix is on."""
    mix_switch_prob: Probability = 0.5
    """Probability of CutMix instead of MixUp, if both are on."""
    mix_off_epoch: int | None = Field(None, ge=0)
    """First epoch without MixUp and CutMix, counted from 0; unset mixes in all epochs."""
    copies: int | None = Field(None, ge=1, le=10_000)
    """Number of augmented copies of each image: after so many epochs, the copies are repeated. A
    teacher of task ``distil`` then labels each copy only once. Unset repeats none."""

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    @model_validator(mode="after")
    def _check_copies(self) -> Self:
        if self.copies and self.mixes:
            raise ValueError(
                "copies: an image is mixed with others in each epoch; remove copies, or set mixup"
                " and cutmix to 0"
            )
        return self


GENERATED = ("scenes", "shapes", "gratings")
"""Data sets that vitcli draws itself."""
DATA_SETS = (*GENERATED, "cifar10", "cifar100", "svhn", "fashion-mnist", "mnist")
CORE[DATA_READERS.field].update(DATA_SETS)


def _count_or_share(value: float) -> float:
    if value >= 1 and value % 1:
        raise ValueError("a number of images is whole, and a share is below 1")
    return int(value) if value % 1 == 0 else value


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
    return text


def _check_std(std: tuple[float, ...]) -> tuple[float, ...]:
    if min(std) <= 0:
        raise ValueError(f"standard deviations must be positive, got {list(std)}")
    return std


def _as_channels(value: Any) -> Any:
    pages = tuple(value) if isinstance(value, list | tuple) else ()
    if value not in ("pages", "grey") and (
        not 1 <= len(pages) <= MOST_PAGES or any(type(n) is not int or n < 0 for n in pages)
    ):
        raise ValueError(f"grey, pages, or a list of pages from 0, such as [0, 2], got {value!r}")
    return pages or value


def _as_levels(value: Any) -> Any:
    levels = tuple(value) if isinstance(value, list | tuple) else (0, value)
    if [type(v) in (int, float) for v in levels] != [True] * 2 or not levels[0] < levels[1]:
        raise ValueError(f"white, such as 4095, or [black, white], got {value!r}")
    return levels


DEPTH_FIELDS = ("page", "channels", "levels")
"""Fields that say which values of a picture file become which pixels."""
READ_FIELDS = ("fit", *DEPTH_FIELDS)
"""Fields that say how own pictures are read, whatever their labels are."""
LABEL_FIELDS = ("group", "corrections")
"""Fields that say which own pictures stay together, have another label, or are left out."""
OWN_FIELDS = (*READ_FIELDS, *LABEL_FIELDS)
"""Fields that describe own pictures: others would read other pictures, labels or groups."""


MOST_PAGES = 64
Pair = tuple[float, float]
Levels = Annotated[Pair, BeforeValidator(_as_levels, json_schema_input_type=float | Pair)]
PictureChannels = Literal["pages", "grey"] | tuple[int, ...]


class DataSpec(Spec):
    """The data set, its preprocessing and its augmentation."""

    name: str = "shapes"
    """Data set: scenes, shapes, gratings, cifar10, cifar100, svhn, fashion-mnist, mnist, or your
    own, such as imagefolder:PATH, csv:PATH or npz:PATH: ``vitcli data ls`` lists all forms."""
    resize: Size | None = None
    """Height and width in pixels to which every image is resized when it is read. One integer means
    a square. Unset keeps the size of the data set."""
    fit: Literal["crop", "pad", "stretch"] = "crop"
    """How pictures of a folder take this shape: ``crop`` keeps the largest central part, ``pad``
    adds black bars, ``stretch`` changes the aspect."""
    page: int | None = Field(None, ge=0)
    """Page of a picture file with several, such as TIFF, from 0. Unset reads the first one."""
    channels: Annotated[PictureChannels, BeforeValidator(_as_channels)] | None = None
    """Channels of picture files: ``grey`` reads one channel, ``pages`` each page of a TIFF file as
    a channel, and a list such as [0, 2] these pages, from 0. Unset reads RGB."""
    levels: Levels | None = None
    """Values of black and white in pictures with more than 8 bits, the same for all; one number is
    white, and 0 black. Unset takes 0 and 65535. The values are read with 256 levels from black to
    white. Values outside become black or white; a picture with more than 1 % above white is
    refused."""
    val_split: Annotated[int | float, AfterValidator(_count_or_share)] = Field(0, ge=0)
    """Number of training images held out for validation, or their share below 1; the same share of
    each class, chosen by content. 0 holds out none. Own pictures that look alike are on one side.
    If your own pictures have a validation split of exactly this number, or of any with a share, it
    is used instead."""
    folds: int | None = Field(None, ge=2, le=1000)
    """Number K of equal parts of the images: the run with seed s tests on part s mod K, and trains
    on the others. In a folder without test pictures, all pictures are divided; otherwise the
    training images are, and the test images are not used. Unset divides nothing."""
    labels: int | None = Field(None, ge=1)
    """Number of labelled training images, balanced by class and chosen by content; unset uses all.
    Only tasks that say so read the other images."""
    mean: Channels | None = None
    """Mean of each channel for pixels in [0, 1]; unset uses the means of the training set. With
    three values (and three of ``std``), grey images are read in colour."""
    std: Annotated[Channels, AfterValidator(_check_std)] | None = None
    """Standard deviation of each channel for pixels in [0, 1]; unset uses the values of the
    training set."""
    class_names: Annotated[tuple[str, ...], AcceptsList] | None = None
    """Names of the classes, in label order; unset uses the names of the data set."""
    skip_bad: bool = False
    """Leave out pictures of a folder that cannot be read; off refuses the folder."""
    allow_leaks: bool = False
    """Train although test pictures of a folder have the same pixels as training pictures."""
    corrections: str | None = None
    """CSV file with the columns file and label: pictures of a folder that belong to another class,
    or, with an empty label, that are left out. Unset changes none."""
    group: Annotated[str, AfterValidator(_check_pattern)] | None = None
    """Regular expression. Your own pictures whose names have the same match, such as the frames of
    one video, belong to one group, which is never divided between splits. Unset uses the column
    ``group`` of the data, if there is one."""
    augment: AugmentSpec = AugmentSpec()
    """Augmentation of the training images; off by default."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in DATA_SETS and not split_name(name):
            known = f"{name!r} is not one of {', '.join(DATA_SETS)}, {list_own()}"
            raise ValueError(missing_for(DATA_READERS.field, name) or known)
        return name

    @model_validator(mode="after")
    def _check_own_pictures(self) -> Self:
        own = ("skip_bad", "allow_leaks", *OWN_FIELDS)
        for field in own if self.name in DATA_SETS else ():
            if getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(
                    f"{field} is for your own pictures ({list_own()}), not {self.name}"
                )
        if self.page is not None and self.channels not in (None, "grey"):
            raise ValueError(f"page and channels both choose pages; leave out page: {self.page}")
        return self

    def num_val(self, num_train: int) -> int:
        """Return how many of ``num_train`` images ``val_split`` holds out."""
        split = self.val_split
        return split if isinstance(split, int) else max(1, round(split * num_train))
