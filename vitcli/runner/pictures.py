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
from typing import BinaryIO

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
MAX_SHOWN = 1024
ORIENTATION = 0x0112
"""The EXIF tag; its values 5 to 8 stand for a quarter turn."""


def shown(path: object) -> str:
    """A name as it may be printed: control characters and broken encodings are escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(path)
    )


def read_picture(path: Path | str, *, size: tuple[int, int], in_chans: int = 3) -> Tensor:
    """Read a picture as (in_chans, *size) uint8; ``-`` is standard input.

    The EXIF rotation is applied, transparency is laid on white, 16-bit grey is scaled to 8 bits,
    the first frame of an animation is taken. Then the largest centred box of the target's aspect
    is resized (``fit_to_size``). A JPEG much larger than needed is decoded at a half, quarter or
    eighth; other such pictures are first averaged over whole blocks.

    Raises:
        InputError: Not a picture that can be read; the text names file, reason and what to do.
    """
    if in_chans not in (1, 3):
        raise ConfigError(f"pictures have 1 or 3 channels, model.in_chans is {in_chans}")
    with quiet_pillow():
        return decode(picture_bytes(path), path, size, in_chans)


def picture_bytes(path: Path | str) -> bytes:
    """The content of a regular file, or of standard input for ``-``."""
    with _opened(path) as file:
        try:
            content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{shown(path)}: over {MAX_BYTES >> 20} MiB; save a smaller copy")
    return content


def picture_size(path: Path | str) -> tuple[int, int]:
    """(H, W) as shown, from the header alone; call it inside ``quiet_pillow``."""
    with _opened(path) as file, _reasons(path, b""):
        image = _checked(file)
        turned = image.getexif().get(ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def decode(content: bytes, name: object, size: tuple[int, int], in_chans: int) -> Tensor:
    """Encoded bytes to (in_chans, *size) uint8; call it inside ``quiet_pillow``."""
    with _reasons(name, content):
        image = _checked(io.BytesIO(content))
        image.draft(image.mode, (2 * max(size), 2 * max(size)))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        _, _, height, width = central_box(image.height, image.width, size)
        shrink = max(1, min(height // (2 * size[0]), width // (2 * size[1])))
        image = _centre(image, height - height % shrink, width - width % shrink)
        image = _eight_bits(image).convert("RGB" if in_chans == 3 else "L").reduce(shrink)
        pixels = np.array(image).reshape(image.height, image.width, in_chans)
    return fit_to_size(torch.from_numpy(pixels).permute(2, 0, 1)[None], size)[0]


def shown_picture(
    content: bytes, name: object, size: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """A picture to draw on, (H, W, 3) uint8 with sides up to ``MAX_SHOWN``, and the box in it that
    ``decode`` gives to a model of this input size: (top, left, height, width).
    """
    with quiet_pillow(), _reasons(name, content):
        image = _checked(io.BytesIO(content))
        image.draft(image.mode, (MAX_SHOWN, MAX_SHOWN))
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        image = _eight_bits(image).convert("RGB")
        image.thumbnail((MAX_SHOWN, MAX_SHOWN), Image.Resampling.LANCZOS)
        return np.array(image), central_box(image.height, image.width, size)


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[BinaryIO]:
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("-: standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to must not wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{shown(path)}: cannot be opened: {reason}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(f"{shown(path)}: {kind}, not a picture file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _checked(file: BinaryIO) -> Image.Image:
    """Read the header, and refuse from it what would be expensive to decode."""
    image = Image.open(file, formats=FORMATS)
    height, width = image.height, image.width
    if height * width > MAX_PIXELS:
        raise _RefusedError(f"{width}x{height} is more than {MAX_PIXELS // 10**6} megapixels")
    if max(height, width) > MAX_RATIO * min(height, width):
        raise _RefusedError(f"{width}x{height} is longer than {MAX_RATIO}:1")
    return image


def _centre(image: Image.Image, height: int, width: int) -> Image.Image:
    if (height, width) == (image.height, image.width):
        return image
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey scaled (not clipped) to 8 bits; anything transparent laid on white."""
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64).clip(0, 65535)
        return Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


class _RefusedError(Exception):
    """A reason of ours, on its way through ``_reasons``."""


@contextlib.contextmanager
def _reasons(name: object, content: bytes) -> Iterator[None]:
    """Turn whatever a hostile or broken file makes Pillow raise into one line."""
    try:
        yield
    except MemoryError:
        raise
    except _RefusedError as error:
        raise InputError(f"{shown(name)}: {error}; save a smaller copy") from error
    except Image.DecompressionBombError as error:
        limit = MAX_PIXELS // 10**6
        raise InputError(f"{shown(name)}: over {limit} megapixels; save a smaller copy") from error
    except Exception as error:  # decoders raise almost anything, SyntaxError and KeyError too
        raise InputError(f"{shown(name)}: {_diagnosis(content)}") from error


def _diagnosis(content: bytes) -> str:
    """What a file that Pillow refused seems to be, and what to do with it."""
    readable = "PNG, JPEG, WebP, BMP and GIF can be read"
    if not content:
        return "the file is empty"
    for kind, brands in (("HEIC", (b"hei", b"hev", b"mif", b"msf")), ("AVIF", (b"avi",))):
        if content[4:8] == b"ftyp" and content[8:11] in brands:
            suffix = kind.lower()
            return f"a {kind} picture; {readable}; convert it: magick FILE.{suffix} FILE.jpg"
    if content[:4] in (b"II*\0", b"MM\0*"):
        return f"a TIFF picture; {readable}; convert it: magick FILE.tif FILE.png"
    if content.startswith((b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF8")):
        return "the picture is damaged or cut short; get a fresh copy"
    is_text = b"\0" not in content[:1024] and content[:1024].isascii()
    return f"{'text' if is_text else 'a file'}, not a picture; {readable}"


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
