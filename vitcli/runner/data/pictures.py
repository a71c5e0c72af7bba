"""Single picture files as pixels of a given size; hostile files are refused.

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
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps

from vitcli.runner.data.box import Size, central_box
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.text import printable

if TYPE_CHECKING:  # an exported model is used without torch
    from torch import Tensor

Box = tuple[int, int, int, int]
Content = bytes | Image.Image
"""A picture: the bytes of a file, or what Pillow made from one."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that Pillow reads. HEIC is read with pillow-heif, if that is installed."""
HEIC_BRANDS = (b"hei", b"hev", b"mif", b"msf")
"""How the brand of a HEIC file begins; the brand follows ``ftyp`` at its start."""
FITS = ("crop", "pad", "stretch")
"""Ways to fit a picture to the input size of a model: its centre fills the input, or the whole
picture does, with its aspect or without. Bars of ``pad`` are black, like the padding of the random
crop during training."""
MAX_PIXELS = 100_000_000
SMALLER = "save a smaller copy"
MAX_BYTES = 256 * 2**20
MAX_RATIO = 20
MAX_SHOWN = 1024
WHITE = np.uint8(255)
MAX_LEVEL = 2**16 - 1
WIDTH, HEIGHT, PHOTOMETRIC = 0x0100, 0x0101, 0x0106
WHITE_IS_ZERO = 0
"""Value of the TIFF tag PHOTOMETRIC: 0 is white."""
ORIENTATION = 0x0112
"""The EXIF tag of the orientation; its values 5 to 8 mean a quarter turn."""
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Value of that tag -> what makes the picture upright."""


def picture_bytes(path: Path | str) -> bytes:
    """Return the content of a regular file, or of standard input for ``-``."""
    with _open_file(path) as file:
        try:
            content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(f"{printable(path)}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise InputError(f"{printable(path)}: over {MAX_BYTES >> 20} MiB; {SMALLER}")
    return content


def picture_size(path: Path | str) -> Size:
    """Return (H, W) after EXIF rotation, from the header. Call it inside ``quiet_pillow``."""
    with _open_file(path) as file, explain_errors(path, b""):
        return _upright_size(_open_checked(file))


def software_of(path: Path | str) -> str:
    """Return the program that a PNG file names as its writer; empty if it names none."""
    try:
        with quiet_pillow(), _open_file(path) as file:
            return str(Image.open(file, formats=("PNG",)).info.get("Software", ""))
    except Exception:  # not a PNG file, or damaged: decoding reports it
        return ""


def _upright_size(image: Image.Image) -> Size:
    width, height = image.size
    if image.format == "TIFF":  # some versions of Pillow have turned the size already
        stored = image.getexif()
        width, height = stored.get(WIDTH, width), stored.get(HEIGHT, height)
    return (width, height) if _orientation(image) >= 5 else (height, width)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, from 1 to 8; 1 if there is none or it cannot be read."""
    if image.format == "PNG":
        image.load()  # its EXIF data may follow the pixels, whose errors count
    try:
        value = int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # of many kinds, as in decoders
        return 1
    return value if value in TURNS else 1


def open_picture(content: Content) -> Image.Image:
    """Open a picture without decoding it, or copy one. Call it inside ``explain_errors``."""
    if isinstance(content, bytes):
        return _open_checked(io.BytesIO(content))
    _refuse_costly(content)
    return content.copy()


def _load(content: Content, fit: str, size: Size, side: int) -> tuple[Image.Image, Box]:
    """Return an upright picture, a JPEG smaller down to ``side``, and the box that it fills."""
    image = open_picture(content)
    box = central_box(*size, _upright_size(image)) if fit == "pad" else (0, 0, *size)
    image.draft(image.mode, (side, side))
    image.load()
    turn = TURNS.get(_orientation(image))
    is_inverted = image.format == "TIFF" and image.getexif().get(PHOTOMETRIC) == WHITE_IS_ZERO
    if is_inverted and image.mode.startswith("I;16"):  # Pillow inverts 8 bits itself
        image = Image.fromarray(MAX_LEVEL - np.asarray(image))
    return image if turn is None else image.transpose(turn), box


def decode(
    content: Content, name: object, size: Size, in_chans: int, fit: str = "crop"
) -> "Tensor":
    """Decode a picture to (in_chans, *size) uint8. Call it inside ``quiet_pillow``.

    The EXIF rotation is applied, transparent pixels become white, 16-bit grey is scaled to 8 bits,
    and the first frame of an animation is used. ``fit`` of ``FITS`` selects the part of the
    picture that is resized and the box that it fills. A JPEG much larger than needed is decoded at
    a half, a quarter or an eighth of its size. Other large pictures are averaged over whole blocks.
    """
    import torch
    import torch.nn.functional as F

    from vitcli.runner.data.arrays import stretch_to_size

    if in_chans not in (1, 3):
        raise ConfigError(f"pictures have 1 or 3 channels, model.in_chans is {in_chans}")
    with explain_errors(name, content):
        image, (top, left, height, width) = _load(content, fit, size, 2 * max(size))
        image = _shrink(image, (height, width), "RGB" if in_chans == 3 else "L", fit)
        pixels = np.array(image).reshape(image.height, image.width, in_chans)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    bars = (left, size[1] - width - left, top, size[0] - height - top)
    return F.pad(stretch_to_size(tensor, (height, width)), bars)[0]


def picture_to_draw(
    content: bytes, name: object, size: Size, fit: str = "crop"
) -> tuple[np.ndarray, Box]:
    """Return a picture to draw on, and the box in it that a model of this input size sees.

    The picture is (H, W, 3) uint8 with sides up to ``MAX_SHOWN``; the box is (top, left, height,
    width). The picture includes the black bars of ``pad``. It is not stretched for ``stretch``, so
    the patches of the model are not square on it.
    """
    with quiet_pillow(), explain_errors(name, content):
        image, filled = _load(content, fit, size, MAX_SHOWN)
        image = _to_eight_bits(image).convert("RGB")
        image = _add_bars(image, filled, size)
        whole = (0, 0, image.height, image.width)
        box = central_box(image.height, image.width, size) if fit == "crop" else whole
        return np.array(image), box


def _add_bars(image: Image.Image, box: Box, size: Size) -> Image.Image:
    """Add the black bars that the model sees around a picture which fills ``box`` of ``size``.

    The sides are at most ``MAX_SHOWN``. A small picture with bars is enlarged by a whole factor, so
    that the bars end at the same place as for the model.
    """
    top, left, height, width = box
    whole = (image.width * size[1] / width, image.height * size[0] / height)
    if whole != image.size and max(whole) <= MAX_SHOWN / 2:
        image = ImageOps.scale(image, MAX_SHOWN // max(whole), Image.Resampling.NEAREST)
    if (share := MAX_SHOWN / max(whole)) < 1:
        sides = max(1, round(image.width * share)), max(1, round(image.height * share))
        image = image.resize(sides, Image.Resampling.LANCZOS, reducing_gap=2)
    across, down = image.width / width, image.height / height  # size of one pixel of the model
    x, y = round(left * across), round(top * down)
    return image.crop((-x, -y, round(size[1] * across) - x, round(size[0] * down) - y))


@contextlib.contextmanager
def _open_file(path: Path | str) -> Iterator[BinaryIO]:
    if str(path) == "-":
        if sys.stdin is None:
            raise InputError("-: standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{printable(path)}: cannot be opened: {reason}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(f"{printable(path)}: {kind}, not a picture file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _open_checked(file: BinaryIO) -> Image.Image:
    """Open a picture; refuse it if its header shows that decoding it would be expensive."""
    is_heic = _is_heic(file.read(12))
    file.seek(0)
    image = Image.open(file, formats=("HEIF",) if is_heic and can_read_heic() else FORMATS)
    _refuse_costly(image)
    return image


def _refuse_costly(image: Image.Image) -> None:
    height, width = image.height, image.width
    if height * width > MAX_PIXELS:
        raise _RefusedError(
            f"{width}x{height} is more than {MAX_PIXELS // 10**6} megapixels; {SMALLER}"
        )
    if max(height, width) > MAX_RATIO * min(height, width):
        raise _RefusedError(f"{width}x{height} has an aspect ratio over {MAX_RATIO}:1; crop it")


def _is_heic(start: bytes) -> bool:
    return start[4:8] == b"ftyp" and start[8:11] in HEIC_BRANDS


@cache
def can_read_heic() -> bool:
    """Return whether pillow-heif is installed; if so, make Pillow use it.

    Embedded thumbnails are ignored, because they may show another picture.
    """
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener(thumbnails=False, depth_images=False, aux_images=False)
    return True


def _shrink(image: Image.Image, size: Size, mode: str, fit: str) -> Image.Image:
    """Return the part of a picture that ``fit`` shows, with sides of at least twice ``size``."""
    height, width = image.height, image.width
    if fit == "crop":
        height, width = central_box(height, width, size)[2:]
    rows, columns = max(1, height // (2 * size[0])), max(1, width // (2 * size[1]))
    if fit == "crop":
        rows = columns = min(rows, columns)
    image = _crop_centre(image, height - height % rows, width - width % columns)
    image = _to_eight_bits(image).convert(mode).reduce((columns, rows))
    if fit == "crop":
        return _crop_centre(image, *central_box(image.height, image.width, size)[2:])
    return image


def _crop_centre(image: Image.Image, height: int, width: int) -> Image.Image:
    if (height, width) == (image.height, image.width):
        return image
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits (without clipping); put transparent pixels on white."""
    clear = image.info.get("transparency")
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        if not 0 <= wide.min() <= wide.max() <= MAX_LEVEL:
            raise _RefusedError("its pixels need more than 16 bits; save 8 or 16 bits")
        grey = ((wide + 128) // 257).astype(np.uint8)
        return Image.fromarray(grey if clear is None else np.where(wide == clear, WHITE, grey))
    if image.mode == "F":
        raise _RefusedError("its pixels are floating-point numbers; save 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


class _RefusedError(Exception):
    """A reason for refusing a picture; ``explain_errors`` adds the file name."""


@contextlib.contextmanager
def explain_errors(name: object, content: Content) -> Iterator[None]:
    """Turn every exception of Pillow into an InputError of one line."""
    try:
        yield
    except MemoryError:
        raise
    except (_RefusedError, Image.DecompressionBombError) as error:
        is_ours = isinstance(error, _RefusedError)
        reason = error if is_ours else f"over {MAX_PIXELS // 10**6} megapixels; {SMALLER}"
        raise InputError(f"{printable(name)}: {reason}") from error
    except Exception as error:  # decoders raise many kinds, even SyntaxError and KeyError
        raise InputError(f"{printable(name)}: {_diagnose(content)}") from error


def _diagnose(content: Content) -> str:
    if not isinstance(content, bytes):
        return "the picture is damaged or cut short"
    readable = "PNG, JPEG, WebP, BMP, GIF, TIFF and HEIC can be read"
    if not content:
        return "the file is empty"
    if _is_heic(content) and not can_read_heic():
        return "a HEIC picture; to read it: pip install pillow-heif"
    signatures = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF8", b"II", b"MM\0")
    if _is_heic(content) or content.startswith(signatures):
        return "the picture is damaged or cut short; get a fresh copy"
    is_text = b"\0" not in content[:1024] and content[:1024].isascii()
    return f"{'text' if is_text else 'a file'}, not a picture; {readable}; convert it first"


_PILLOW_LOCK = threading.Lock()
_quiet = contextlib.ExitStack()
_num_quiet = 0


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings, because sizes are checked here and each file is read or refused.

    Warning filters apply to the whole process. Therefore they change when the first thread enters
    this context, and again when the last one leaves it.
    """
    global _num_quiet
    with _PILLOW_LOCK:
        if not _num_quiet:
            _quiet.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"(PIL|pillow_heif)\b")
        _num_quiet += 1
    try:
        yield
    finally:
        with _PILLOW_LOCK:
            _num_quiet -= 1
            if not _num_quiet:
                _quiet.close()
