"""Whole data sets of uint8 pixels, stored on the device.

Axes: N images, C channels, H W pixels.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitcli.core.data.augment import normalize

PORTION = 1024
"""Number of images whose pixels are converted to integers at a time."""


@dataclass(frozen=True)
class Images:
    """Images as pixels (N, C, H, W) uint8 and labels (N,) int64, on one device."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device))


def evenly_spaced(images: Images, count: int) -> Images:
    """Return ``count`` evenly spaced images, or all images if there are fewer.

    A split is sorted by class, so its first images would cover only some classes.
    """
    if count >= len(images):
        return images
    index = torch.arange(count, device=images.labels.device) * len(images) // count
    return Images(images.pixels[index], images.labels[index])


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
        val = self.val and self.val.to(device)
        return replace(self, train=self.train.to(device), test=self.test.to(device), val=val)


def channel_stats(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel of (N, C, H, W) uint8, on the [0, 1] scale.

    Both are computed from the 256-bin histogram of each channel. The result is exact and needs no
    float copy of the pixels.
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in pixels.unbind(1):
        weight = torch.bincount(channel.flatten().int(), minlength=256).double().cpu()
        weight /= weight.sum()
        mean = (weight * levels).sum()
        means.append(mean.item())
        stds.append((weight * (levels - mean).square()).sum().sqrt().item())
    return tuple(means), tuple(stds)
