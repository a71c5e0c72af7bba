"""Whole data sets as uint8 arrays: canonical order, size, hash and held-out images.

Axes: N images, C channels, H W pixels.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.data.source import DataSet, Images, channel_stats
from vitcli.runner.errors import ConfigError, InputError, ResourceError

Size = tuple[int, int]
CHUNK = 64
"""Number of images resized at a time; they fit into the processor's cache."""


def pixel_digests(pixels: Tensor) -> list[bytes]:
    """Return the SHA-256 of each image's bytes: any tensor whose first axis is N -> N digests."""
    return [hashlib.sha256(image.data).digest() for image in pixels.contiguous().numpy()]


def canonical_order(images: Images) -> Tensor:
    """Return the indices that sort images by label, then by the SHA-256 of their pixels: (N,).

    The order depends on the content only, not on file names or their order. Within a class it is
    pseudo-random, so the first images of each class are an unbiased and repeatable sample (see
    ``hold_out``). Equal images are sorted by their extra tensors, such as captions.
    """
    labels, digests = images.labels.tolist(), pixel_digests(images.pixels)
    extras = [pixel_digests(images.extra[name]) for name in sorted(images.extra)]
    keys = list(zip(labels, digests, *extras, strict=True))
    places = sorted(range(len(labels)), key=keys.__getitem__)
    return torch.tensor(places, dtype=torch.int64)


def data_hash(splits: Iterable[Images]) -> str:
    """Return the SHA-256 of the shapes, labels, pixels and extra tensors of all splits.

    Images without extra tensors have the hash of earlier versions. Captions and sounds are part of
    what a run was trained on, so they enter the hash.
    """
    digest = hashlib.sha256()
    for images in splits:
        digest.update(repr(tuple(images.pixels.shape)).encode())
        digest.update(images.labels.contiguous().numpy().data)
        digest.update(images.pixels.contiguous().numpy().data)
        for name, values in sorted(images.extra.items()):
            digest.update(f"{name} {tuple(values.shape)}".encode())
            digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()


def arranged(
    class_names: tuple[str, ...],
    train: Images,
    test: Images,
    size: Size | None = None,
) -> DataSet:
    """Return images in canonical order and of a size as a data set without a name.

    They are sorted before resizing, so that the order is the same for all sizes.
    """
    train, test = train[canonical_order(train)], test[canonical_order(test)]
    if size:
        train, test = (
            replace(each, pixels=fit_to_size(each.pixels, size)) for each in (train, test)
        )
    mean, std = channel_stats(train.pixels)
    return DataSet(
        name="",
        class_names=class_names,
        train=train,
        test=test,
        mean=mean,
        std=std,
        data_hash=data_hash((train, test)),
    )


def from_arrays(name: str, splits: Mapping[str, Any], class_names: Sequence[str]) -> DataSet:
    """Return images and labels in memory as a data set.

    Args:
        name: Name of the data set.
        splits: ``train`` and ``test``, each images and labels; see ``vitcli.data_set``.
        class_names: Name of each label; empty for the labels themselves.

    Raises:
        InputError: The arrays are of another kind, or do not fit together.
    """
    found = {split: _images(split, *pair) for split, pair in splits.items()}
    train, test = found["train"], found["test"]
    if train.pixels.shape[1:] != test.pixels.shape[1:]:
        shapes = " and ".join(str(tuple(each.pixels.shape[1:])) for each in (train, test))
        raise InputError(f"train and test have images of {shapes}")
    count = len(class_names) or int(train.labels.max()) + 1
    for split, images in found.items():
        if int(images.labels.max()) >= count:
            raise InputError(f"{split}: label {int(images.labels.max())}, but {count} classes")
    names = tuple(map(str, class_names)) or tuple(map(str, range(count)))
    return replace(arranged(names, train, test), name=name)


def _images(split: str, images: Any, labels: Any) -> Images:
    """Return the images of a split as (N, C, H, W) uint8; the shortest outer axis is C."""
    pixels, numbers = torch.as_tensor(images), torch.as_tensor(labels)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    if pixels.dtype != torch.uint8 or pixels.ndim != 4 or not pixels.numel():
        raise InputError(
            f"{split}: images are {pixels.dtype} {tuple(pixels.shape)}; needed are uint8,"
            " (N, H, W), (N, H, W, C) or (N, C, H, W)"
        )
    if pixels.shape[3] < pixels.shape[1]:
        pixels = pixels.permute(0, 3, 1, 2)
    is_whole = not (numbers.is_floating_point() or numbers.is_complex())
    if not is_whole or numbers.shape != (len(pixels),) or int(numbers.min()) < 0:
        raise InputError(
            f"{split}: labels are {numbers.dtype} {tuple(numbers.shape)}; needed are"
            f" {len(pixels)} whole numbers from 0"
        )
    return Images(pixels.cpu().contiguous(), numbers.cpu().long())


def rank_in_class(labels: Tensor) -> Tensor:
    """Return the position of each image within its class, (N,), for sorted labels (N,)."""
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    return torch.arange(len(labels)) - starts[labels]


def hold_out(images: Images, count: int) -> tuple[Images, Images]:
    """Split images in canonical order into (kept, held out), with ``count`` images held out.

    Each class gives its share (the method of Sainte-Lague), its first images in canonical order.
    So classes of equal size give equally many, and a smaller count gives a subset. A class keeps
    its last image.

    Raises:
        ConfigError: ``count`` is too large.
    """
    ranks, counts = rank_in_class(images.labels), torch.bincount(images.labels)
    spare = (ranks < counts[images.labels] - 1).nonzero().flatten()
    if count > len(spare):
        raise ConfigError(
            f"data.val_split {count} is too large: {len(images)} training images can spare at most"
            f" {len(spare)} and leave one in each class"
        )
    share = (2 * ranks[spare] + 1).double() / counts[images.labels[spare]]
    out = torch.zeros(len(images), dtype=torch.bool)
    out[spare[share.argsort(stable=True)[:count]]] = True
    return images[~out], images[out]


def keep_labels(images: Images, count: int, field: str = "data.labels") -> tuple[Images, Images]:
    """Return ``count`` labelled images, and all images with the label -1.

    The images must be in canonical order. The labelled images are balanced by class: each round
    takes the last image of each class that has one left, because ``hold_out`` takes the first. So
    a smaller count gives a subset, and the choice does not depend on the validation split.

    Raises:
        ConfigError: ``count`` does not give each class a label, or is larger than the data set.
    """
    counts = torch.bincount(images.labels)
    if not int((counts > 0).sum()) <= count <= len(images):
        raise ConfigError(
            f"{field} {count} must be at least {int((counts > 0).sum())}, one for each class,"
            f" and at most {len(images)}, the training images"
        )
    ranks = counts[images.labels] - 1 - rank_in_class(images.labels)
    turn = ranks * len(counts) + images.labels
    kept = torch.zeros(len(images), dtype=torch.bool)
    kept[turn.argsort()[:count]] = True
    return images[kept], replace(images, labels=torch.full_like(images.labels, -1))


def central_box(height: int, width: int, size: Size) -> tuple[int, int, int, int]:
    """Return the largest centred box with the aspect of ``size``: (top, left, height, width)."""
    scale = min(height / size[0], width / size[1])
    h = min(height, max(1, round(size[0] * scale)))
    w = min(width, max(1, round(size[1] * scale)))
    return (height - h) // 2, (width - w) // 2, h, w


def fit_to_size(pixels: Tensor, size: Size) -> Tensor:
    """Crop the centre to the aspect of ``size`` and resize, (N, C, H, W) -> (N, C, *size) uint8.

    The result equals that of resizing the shorter side and then cropping the centre, but needs no
    large intermediate array.
    """
    rows, columns = pixels.shape[-2:]
    top, left, height, width = central_box(rows, columns, size)
    return stretch_to_size(pixels[..., top : top + height, left : left + width], size)


def stretch_to_size(pixels: Tensor, size: Size) -> Tensor:
    """Resize each side independently, (N, C, H, W) -> (N, C, *size) uint8.

    The interpolation is bilinear with antialiasing. Enlarging by a factor of two is exact in fp32,
    so it is bit-identical on every machine.
    """
    if pixels.shape[-2:] == size:
        return pixels.contiguous()
    out = torch.empty(*pixels.shape[:2], *size, dtype=torch.uint8)
    for part, target in zip(pixels.split(CHUNK), out.split(CHUNK), strict=True):
        scaled = F.interpolate(part.float(), size=size, mode="bilinear", antialias=True)
        target.copy_(scaled.round_().clamp_(0, 255))
    return out


def available_memory() -> int | None:
    """Return the free bytes of memory within the limits of the control group; None if unknown."""
    limits = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        group = Path("/sys/fs/cgroup")
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            limits.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return min(limits, default=None)


def require_memory(count: int, in_chans: int, size: Size, copies: float = 3.0) -> None:
    """Refuse arrays that do not fit into memory.

    Args:
        count: The number of images.
        in_chans: The number of channels.
        size: The height and width of an image in pixels.
        copies: The number of copies held at once; building, splitting and sorting need three.

    Raises:
        ResourceError: The arrays do not fit. The text suggests a smaller ``data.resize``.
    """
    free = available_memory()
    needed = int(count * in_chans * size[0] * size[1] * copies)
    if free is None or needed <= free:
        return
    side = int((free / copies / (count * in_chans)) ** 0.5)
    side = side // 8 * 8 or side
    hint = f"try -s data.resize={side}" if side else "use fewer images"
    raise ResourceError(
        f"{count:,} images of {size[0]}x{size[1]} need {needed / 2**30:.1f} GiB of memory,"
        f" {free / 2**30:.1f} GiB are free; {hint}"
    )
