"""Whole data sets as uint8 arrays: canonical order, size, hash and held-out images.

Axes: N images, C channels, H W pixels.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.data.source import PORTION, DataSet, Images, channel_stats
from vitcli.runner.data.box import Size as Size
from vitcli.runner.data.box import central_box as central_box
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.limits import available_memory

CHUNK = 64
"""Number of images resized at a time; they fit into the processor's cache."""
COPIES = 3.0
"""Number of copies that are held at once: building, splitting and sorting need three."""


def pixel_digests(pixels: Tensor) -> list[bytes]:
    """Return the SHA-256 of each image's bytes: any tensor whose first axis is N -> N digests."""
    parts = (part.contiguous().numpy() for part in pixels.split(PORTION))
    return [hashlib.sha256(image.data).digest() for part in parts for image in part]


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
        for part in images.pixels.split(PORTION):
            digest.update(part.contiguous().numpy().data)
        for name, values in sorted(images.extra.items()):
            digest.update(f"{name} {tuple(values.shape)}".encode())
            digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()


def arranged(
    class_names: tuple[str, ...],
    train: Images,
    test: Images,
    size: Size | None = None,
    val: Images | None = None,
) -> DataSet:
    """Return images in canonical order, the same for all sizes, as a data set without a name."""
    train, test = train[canonical_order(train)], test[canonical_order(test)]
    val = val and val[canonical_order(val)]
    if size:
        train = replace(train, pixels=_resized(train.pixels, size))
        test = replace(test, pixels=_resized(test.pixels, size))
    mean, std = channel_stats(train.pixels)
    return DataSet(
        name="",
        class_names=class_names,
        train=train,
        test=test,
        val=val,
        mean=mean,
        std=std,
        data_hash=data_hash((train, test, *([val] if val else []))),
    )


def _resized(pixels: Tensor, size: Size) -> Tensor:
    out = pixels.new_empty(*pixels.shape[:2], *size)
    for part, target in zip(pixels.split(CHUNK), out.split(CHUNK), strict=True):
        target.copy_(fitted(part, size))
    return out


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


def fitted(pixels: Tensor, size: Size, fit: str = "crop") -> Tensor:
    """Return images at a size, (N, C, H, W) -> (N, C, *size) uint8; ``fit`` is one of ``FITS``.

    A crop equals that of resizing the shorter side and then cropping the centre, but needs no large
    intermediate array.
    """
    height, width = pixels.shape[-2:]
    if fit == "crop":
        top, left, h, w = central_box(height, width, size)
        return stretch_to_size(pixels[..., top : top + h, left : left + w], size)
    top, left, h, w = central_box(*size, (height, width)) if fit == "pad" else (0, 0, *size)
    bars = (left, size[1] - w - left, top, size[0] - h - top)
    return F.pad(stretch_to_size(pixels, (h, w)), bars)


def stretch_to_size(pixels: Tensor, size: Size) -> Tensor:
    """Resize each side independently, (N, C, H, W) -> (N, C, *size) uint8.

    The interpolation is bilinear with antialiasing. Enlarging by a factor of two is exact in fp32,
    so it is bit-identical on every machine.
    """
    if pixels.shape[-2:] == size:
        return pixels.contiguous()
    if size[1] == 1 < size[0]:  # torch's antialiasing takes wrong rows for a single column
        return stretch_to_size(pixels.mT, (1, size[0])).mT.contiguous()
    out = torch.empty(*pixels.shape[:2], *size, dtype=torch.uint8)
    for part, target in zip(pixels.split(CHUNK), out.split(CHUNK), strict=True):
        scaled = F.interpolate(part.float(), size=size, mode="bilinear", antialias=True)
        target.copy_(scaled.round_().clamp_(0, 255))
    return out


def require_memory(count: int, in_chans: int, size: Size) -> None:
    """Refuse arrays that do not fit into the free memory while they are made."""
    needed, free = int(count * in_chans * size[0] * size[1] * COPIES), available_memory()
    if free is None or needed <= free:
        return
    side = int((free / COPIES / (count * in_chans)) ** 0.5)
    side = side // 8 * 8 or side
    hint = f"try -s data.resize={side}" if side else "use fewer images"
    raise ResourceError(
        f"{count:,} images of {size[0]}x{size[1]} need {needed / 2**30:.1f} GiB of memory, and"
        f" {free / 2**30:.1f} GiB are free; {hint}"
    )
