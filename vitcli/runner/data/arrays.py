"""Whole data sets as uint8 arrays: their one order, their size, their hash, their held-out parts.

Axes: N images, C channels, H W pixels.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.data.source import Images
from vitcli.runner.errors import ConfigError, ResourceError

CHUNK = 64
"""Images resized at a time: small enough for the processor's cache."""


def pixel_digests(pixels: Tensor) -> list[bytes]:
    """The SHA-256 of each image's bytes, (N, C, H, W) uint8 -> N digests."""
    return [hashlib.sha256(image.data).digest() for image in pixels.contiguous().numpy()]


def canonical(images: Images) -> Images:
    """Sort by label, then by the SHA-256 of the pixels: the order forgets where images came from.

    Within a class the order is as good as random, and yet a function of the pixels alone, so the
    first images of each class make a fair and repeatable sample (see ``hold_out``).
    """
    labels, digests = images.labels.tolist(), pixel_digests(images.pixels)
    places = sorted(range(len(labels)), key=lambda i: (labels[i], digests[i]))
    order = torch.tensor(places, dtype=torch.int64)
    return Images(images.pixels[order], images.labels[order])


def data_hash(splits: Iterable[Images]) -> str:
    """SHA-256 over shapes, labels and pixels of all splits."""
    digest = hashlib.sha256()
    for images in splits:
        digest.update(repr(tuple(images.pixels.shape)).encode())
        digest.update(images.labels.contiguous().numpy().data)
        digest.update(images.pixels.contiguous().numpy().data)
    return digest.hexdigest()


def rank_in_class(labels: Tensor) -> Tensor:
    """For sorted labels (N,): the position of each image within its class, (N,)."""
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    return torch.arange(len(labels)) - starts[labels]


def hold_out(images: Images, count: int) -> tuple[Images, Images]:
    """Split canonical images into (kept, held out), exactly ``count`` of them, balanced by class.

    Images are taken in turns, one of each class, in canonical order; a class that runs out is
    passed over, and keeps its last image.

    Raises:
        ConfigError: The classes cannot spare so many.
    """
    ranks, counts = rank_in_class(images.labels), torch.bincount(images.labels)
    spare = (ranks < counts[images.labels] - 1).nonzero().flatten()
    if count > len(spare):
        raise ConfigError(
            f"data.val_split {count} is too large: {len(images)} training images can spare at most"
            f" {len(spare)} and leave one in each class"
        )
    turn = ranks[spare] * len(counts) + images.labels[spare]
    out = torch.zeros(len(images), dtype=torch.bool)
    out[spare[turn.argsort()[:count]]] = True
    return _pick(images, ~out), _pick(images, out)


def _pick(images: Images, mask: Tensor) -> Images:
    return Images(images.pixels[mask], images.labels[mask])


def central_box(height: int, width: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest centred (top, left, height, width) with the aspect of ``size``."""
    scale = min(height / size[0], width / size[1])
    h = min(height, max(1, round(size[0] * scale)))
    w = min(width, max(1, round(size[1] * scale)))
    return (height - h) // 2, (width - w) // 2, h, w


def inner_box(height: int, width: int, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """Where a whole picture fits in the middle of ``size``: (top, left, height, width)."""
    scale = min(size[0] / height, size[1] / width)
    h = min(size[0], max(1, round(height * scale)))
    w = min(size[1], max(1, round(width * scale)))
    return (size[0] - h) // 2, (size[1] - w) // 2, h, w


def fit_to_size(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Centre crop to the target's aspect and resize, (N, C, H, W) uint8 -> (N, C, *size) uint8.

    The same as resizing the shorter side and cropping the centre, without the large middle.
    """
    rows, columns = pixels.shape[-2:]
    top, left, height, width = central_box(rows, columns, size)
    return stretch_to_size(pixels[..., top : top + height, left : left + width], size)


def stretch_to_size(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize each side by itself, (N, C, H, W) uint8 -> (N, C, *size) uint8.

    Antialiased bilinear; enlarging twice is exact in fp32, so it has the same bits everywhere.
    """
    if pixels.shape[-2:] == size:
        return pixels.contiguous()
    out = torch.empty(*pixels.shape[:2], *size, dtype=torch.uint8)
    for part, target in zip(pixels.split(CHUNK), out.split(CHUNK), strict=True):
        scaled = F.interpolate(part.float(), size=size, mode="bilinear", antialias=True)
        target.copy_(scaled.round_().clamp_(0, 255))
    return out


def resized(images: Images, size: tuple[int, int] | None) -> Images:
    return Images(fit_to_size(images.pixels, size), images.labels) if size else images


def available_memory() -> int | None:
    """Bytes that the kernel and the control group still give; None if unknown."""
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


def require_memory(count: int, in_chans: int, size: tuple[int, int], copies: float = 3.0) -> None:
    """Refuse arrays that will not fit: while they are built, sorted and cached there are three.

    Raises:
        ResourceError: Names a smaller ``data.resize``.
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
