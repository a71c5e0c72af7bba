"""One picture file, of any size and kind, as pixels of a wanted size; hostile files are refused.

Axes: C channels, H W pixels.
"""

import contextlib
import io
import os
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from vitcli.runner.data.arrays import central_box, fit_to_size
from vitcli.runner.errors import ConfigError, InputError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 100_000_000
MAX_BYTES = 256 * 2**20
MAX_RATIO = 20
READABLE = "PNG, JPEG, WebP, BMP and GIF can be read"
_FOREIGN = (
    ((b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypmif1", b"ftypmsf1"), "HEIC"),
    ((b"ftypavif", b"ftypavis"), "AVIF"),
)
_ORIENTATION = 0x0112


def shown(path: object) -> str:
    """A name as it may be printed: control characters and broken encodings are escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(path)
    )


def read_picture(path: Path, *, size: tuple[int, int], in_chans: int = 3) -> Tensor:
    """Read a picture as (in_chans, *size) uint8; ``-`` is standard input.

    The EXIF rotation is applied, transparency is laid on white, 16-bit grey is scaled to 8 bits,
    the first frame of an animation is taken. Then the largest centred box of the target's aspect
    is resized (``fit_to_size``). A JPEG much larger than needed is decoded at a half, quarter or
    eighth, other such pictures are first averaged over whole blocks.

    Raises:
        InputError: Not a picture that can be read; the text names file, reason and what to do.
    """
    if in_chans not in (1, 3):
        raise ConfigError(f"pictures have 1 or 3 channels, model.in_chans is {in_chans}")
    with quiet_pillow():
        return decode(picture_bytes(path), shown(path), size, in_chans)


def picture_bytes(path: Path | str) -> bytes:
    """The content of a regular file, or of standard input for ``-``."""
    name = shown(path)
    try:
        if str(path) == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            # O_NONBLOCK: opening a pipe nobody writes to must not wait for ever.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                mode = os.fstat(descriptor).st_mode
                if not stat.S_ISREG(mode):
                    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
                    raise InputError(f"{name}: {kind}, not a picture file")
                content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{name}: cannot be opened: {reason}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{name}: larger than {MAX_BYTES >> 20} MiB; save a smaller copy")
    return content


def decode(content: bytes, name: str, size: tuple[int, int], in_chans: int) -> Tensor:
    """Encoded bytes to (in_chans, *size) uint8; call it inside ``quiet_pillow``."""
    with reasons(content, name):
        image = _open(content)
        image.draft(image.mode, (2 * max(size), 2 * max(size)))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        top, left, height, width = central_box(image.height, image.width, size)
        if (height, width) != (image.height, image.width):
            image = image.crop((left, top, left + width, top + height))
        image = _eight_bits(image).convert("RGB" if in_chans == 3 else "L")
        if (shrink := min(height // (2 * size[0]), width // (2 * size[1]))) > 1:
            image = image.reduce(shrink)
        pixels = np.asarray(image).reshape(image.height, image.width, in_chans)
    return fit_to_size(torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None], size)[0]


def picture_size(content: bytes, name: str) -> tuple[int, int]:
    """(H, W) as shown, from the header alone; call it inside ``quiet_pillow``."""
    with reasons(content, name):
        image = _open(content)
        turned = image.getexif().get(_ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def _open(content: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    height, width = image.height, image.width
    if height * width > MAX_PIXELS:
        raise _Refused(f"{width}x{height} is more than {MAX_PIXELS // 10**6} megapixels")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise _Refused(f"{width}x{height} is longer than {MAX_RATIO}:1")
    return image


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled (not clipped) to 8 bits; anything transparent laid on white."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


class _Refused(Exception):
    """A reason of ours, on its way through ``reasons``."""


@contextlib.contextmanager
def reasons(content: bytes, name: str) -> Iterator[None]:
    """Turn whatever a hostile or broken file makes Pillow raise into one line."""
    try:
        yield
    except MemoryError:
        raise
    except _Refused as error:
        raise InputError(f"{name}: {error}; save a smaller copy") from error
    except Image.DecompressionBombError as error:
        limit = MAX_PIXELS // 10**6
        raise InputError(f"{name}: more than {limit} megapixels; save a smaller copy") from error
    except Exception as error:  # decoders raise almost anything, SyntaxError and KeyError too
        raise InputError(f"{name}: {_diagnosis(content)}") from error


def _diagnosis(content: bytes) -> str:
    if not content:
        return "the file is empty"
    for marks, kind in _FOREIGN:
        if content[4:12] in marks:
            return f"a {kind} picture; {READABLE}; convert it: magick FILE.{kind.lower()} FILE.jpg"
    if content[:4] in (b"II*\0", b"MM\0*"):
        return f"a TIFF picture; {READABLE}; convert it: magick FILE.tif FILE.png"
    heads = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF8")
    if content.startswith(heads):
        return "the picture is damaged or cut short; get a fresh copy"
    kind = "text" if b"\0" not in content[:1024] and content[:1024].isascii() else "a file"
    return f"{kind}, not a picture; {READABLE}"


_PILLOW_LOCK = threading.Lock()


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings: sizes are checked here, and a file is either read or refused.

    Warning filters belong to the whole process, so this wraps a pool of decoding threads once,
    from outside.
    """
    with _PILLOW_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
