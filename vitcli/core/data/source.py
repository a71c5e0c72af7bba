"""Whole data sets of uint8 pixels, stored on the device.

Axes: N images, C channels, H W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vitcli.core.data.augment import normalize
from vitcli.core.spec import DataSpec

PORTION = 1024
"""Number of images whose pixels are converted to integers at a time."""


@dataclass(frozen=True)
class Images:
    """Images as pixels (N, C, H, W) uint8 and labels (N,) int64, on one device."""

    pixels: Tensor
    labels: Tensor
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Name -> another tensor of the images, such as captions; its first axis is N."""
    names: tuple[str, ...] = ()
    """Name of each image, such as its file in a folder; empty without names."""
    shown: Tensor | None = None
    """Top, left, height and width of the part without black bars, (N, 4); None: there are none."""

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"<Images: {len(self)}, {'x'.join(map(str, self.pixels.shape[1:]))}>"

    def __getitem__(self, index: Tensor | slice) -> "Images":
        """Return the images at some indices, or those that a mask selects."""
        extra = {name: tensor[index] for name, tensor in self.extra.items()}
        names, shown = self.names, self.shown
        if names:
            chosen = index.cpu() if isinstance(index, Tensor) else index
            names = tuple(names[place] for place in torch.arange(len(names))[chosen].tolist())
            shown = None if shown is None else shown[chosen]
        return Images(self.pixels[index], self.labels[index], extra, names, shown)

    def to(self, device: torch.device | str) -> "Images":
        extra = {name: tensor.to(device) for name, tensor in self.extra.items()}
        pixels, labels = self.pixels.to(device), self.labels.to(device)
        return Images(pixels, labels, extra, self.names, self.shown)


def together(first: Images, second: Images) -> Images:
    """Return the images of both, in this order."""
    extra = {name: torch.cat([part, second.extra[name]]) for name, part in first.extra.items()}
    labels = torch.cat([first.labels, second.labels])
    boxes = [part.shown for part in (first, second) if part.shown is not None]
    shown, pixels = torch.cat(boxes) if boxes else None, torch.cat([first.pixels, second.pixels])
    return Images(pixels, labels, extra, first.names + second.names, shown)


def evenly_spaced(images: Images, count: int) -> Images:
    """Return ``count`` evenly spaced images, or all images if there are fewer.

    A split is sorted by class, so its first images would cover only some classes.
    """
    if count >= len(images):
        return images
    index = torch.arange(count, device=images.labels.device) * len(images) // count
    return images[index]


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Data set ready for training: its splits, class names and channel statistics.

    ``mean`` and ``std`` are per channel over pixels in [0, 1]. ``data_hash`` is the SHA-256 of the
    arrays in canonical order, so the same images have the same hash in every file format.
    """

    name: str
    class_names: tuple[str, ...]
    train: Images
    test: Images
    val: Images | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data_hash: str
    leaks: tuple[str, ...] = ()
    """Names of the held-out images that are in another split, too."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Name of an own picture -> digest of its file, or of its pixels if it is no file."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Name of an own picture -> its group, see ``data.group``; of pictures in no group, nothing."""
    unlabelled: Images | None = None
    """All training images, with labels of -1, if ``data.labels`` limits ``train``."""
    spec: DataSpec | None = None
    """The fields with which the images can be read again; None for arrays."""

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.train.pixels.shape[1:]))
        parts = {"train": self.train, "val": self.val, "test": self.test}
        sizes = [f"{len(images)} {name}" for name, images in parts.items() if images is not None]
        return f"<DataSet {self.name}: {', '.join(sizes)}, {self.num_classes} classes, {shape}>"

    @property
    def all_train(self) -> Images:
        """Return all training images, whether a task may see their labels or not."""
        return self.train if self.unlabelled is None else self.unlabelled

    @property
    def in_chans(self) -> int:
        return self.train.pixels.shape[1]

    @property
    def img_size(self) -> tuple[int, int]:
        height, width = self.train.pixels.shape[2:]
        return height, width

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Normalise pixels with the data set's statistics: (B, C, H, W) uint8 -> float32."""
        mean, std = (torch.tensor(row, device=pixels.device) for row in (self.mean, self.std))
        return normalize(pixels, mean, std)

    def to(self, device: torch.device | str) -> "DataSet":
        val, unlabelled = (part and part.to(device) for part in (self.val, self.unlabelled))
        train, test = self.train.to(device), self.test.to(device)
        return replace(self, train=train, test=test, val=val, unlabelled=unlabelled)


def channel_stats(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of (N, C, H, W) uint8, on the [0, 1] scale.

    Both are computed from the 256-bin histogram of each channel. The result is exact and needs no
    float copy of the pixels.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds, counts = [], [], torch.zeros(pixels.shape[1], 256, dtype=torch.int64)
    for part in pixels.split(PORTION):
        for count, channel in zip(counts, part.unbind(1), strict=True):
            count += torch.bincount(channel.flatten().int(), minlength=256).cpu()
    for weight in counts.double():
        weight /= weight.sum()
        mean = (weight * levels).sum()
        means.append(mean.item())
        stds.append((weight * (levels - mean).square()).sum().sqrt().item())
    return tuple(means), tuple(stds)
