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
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitcli.core.spec import DataSpec
from vitcli.runner.data.box import Size, central_box
from vitcli.runner.data.deep import (
    HEIGHT,
    MAX_LEVEL,
    PHOTOMETRIC,
    WHITE_IS_ZERO,
    WIDTH,
    RefusedError,
    Seen,
    describe_tiff,
    is_wide,
    look_at,
    num_samples,
    pages_of,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.text import percent, printable, quantity

if TYPE_CHECKING:  # an exported model is used without torch
    from torch import Tensor

Box = tuple[int, int, int, int]
Content = bytes | Image.Image
"""A picture: the bytes of a file, or what Pillow made from one."""
UNSET = DataSpec()
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
MOST_ABOVE = 0.01
"""Largest share of the values of a picture that may be above the white of ``data.levels``."""
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
        return content_of(file, path)


def content_of(file: BinaryIO, name: object) -> bytes:
    """Return what is left to read in a file, which must be open to read bytes."""
    try:
        content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{printable(name)}: cannot be read: {reason}") from error
    if not isinstance(content, bytes):
        raise InputError(f"{printable(name)}: the file gives no bytes; open it with 'rb'")
    if len(content) > MAX_BYTES:
        raise InputError(f"{printable(name)}: over {MAX_BYTES >> 20} MiB; {SMALLER}")
    return content


def picture_size(path: Path | str, page: int = 0) -> Size:
    """Return (H, W) after EXIF rotation, from the header. Call it inside ``quiet_pillow``."""
    with _open_file(path) as file, explain_errors(path, b""):
        return _upright_size(_open_checked(file, page))


def num_pages(path: Path | str) -> int:
    """Return the number of pages, up to 1,000. Call it inside ``quiet_pillow``."""
    content = picture_bytes(path)
    with explain_errors(path, content):
        return len(pages_of(_open_checked(io.BytesIO(content))))


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


def open_picture(content: Content, page: int = 0) -> Image.Image:
    """Open a picture without decoding it, or copy one. Call it inside ``explain_errors``."""
    if isinstance(content, bytes):
        return _open_checked(io.BytesIO(content), page)
    _refuse_costly(content)
    image = content.copy()
    _seek(image, page)
    return image


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("1", "L") or is_wide(image)


def _load(
    content: Content, data: DataSpec, size: Size, side: int, seen: Seen
) -> tuple[list[Image.Image], Box]:
    """Return an upright picture, or one of each page that ``data.channels`` chooses.

    They have 8 bits, a JPEG is smaller down to ``side``, and they fill the returned box.
    """
    image = open_picture(content, data.page or 0)
    whole = _upright_size(image)
    box = central_box(*size, whole) if data.fit == "pad" else (0, 0, *size)
    image.draft(image.mode, (side, side))
    pages = list_pages(image, content, data, seen)
    if data.channels in (None, "grey"):
        picture = _upright(image, content, data, seen)
        return [picture.convert("L") if data.channels else picture], box
    pictures, of_pages = list[Image.Image](), Seen()
    pages = data.channels if isinstance(data.channels, tuple) else pages
    if len(pages) * whole[0] * whole[1] > MAX_PIXELS:
        raise RefusedError(f"its pages have over {MAX_PIXELS // 10**6} megapixels; {SMALLER}")
    for page in pages:
        _seek(image, page)
        if not _is_grey(image):
            raise RefusedError(f"page {page} has colours ({image.mode}); a channel is a grey page")
        if _upright_size(image) != whole:
            raise RefusedError(f"page {page} has another size than the first; save equal sizes")
        pictures.append(_upright(image, content, data, of_pages).convert("L"))
    most = {kind: (kind, number) for kind, number, *_ in sorted(of_pages)}
    seen += most.values()
    return pictures, box


def list_pages(image: Image.Image, content: Content, data: DataSpec, seen: Seen) -> Sequence[int]:
    """Return the pages of a file, and note those that are not read; refuse a smaller copy."""
    if not isinstance(content, bytes) or image.format != "TIFF":
        return [0]
    pages = pages_of(_open_checked(io.BytesIO(content)))
    is_copy = not pages if data.channels == "pages" else 0 not in pages
    if is_copy and data.page is None and not isinstance(data.channels, tuple):
        raise RefusedError(
            "its first page is a smaller copy, as in a raw file of a camera; save the picture"
            " as JPEG or PNG, or name the page to read (data.page)"
        )
    if len(pages) > 1 and data.page is None and data.channels in (None, "grey"):
        seen.append(("pages" if _is_grey(image) else "colours", len(pages)))
    return pages


def _seek(image: Image.Image, page: int) -> None:
    try:
        if page != image.tell():
            image.seek(page)
    except EOFError:
        raise RefusedError(
            f"has no page {page}, counted from 0 (data.page, data.channels)"
        ) from None


def _upright(image: Image.Image, content: Content, data: DataSpec, seen: Seen) -> Image.Image:
    is_stack = is_wide(image) and num_samples(image) > 1  # Pillow would call it damaged
    if is_stack and isinstance(content, bytes) and (reason := describe_tiff(content)):
        raise RefusedError(reason)
    image.load()
    turn = TURNS.get(_orientation(image))
    is_inverted = image.format == "TIFF" and image.getexif().get(PHOTOMETRIC) == WHITE_IS_ZERO
    seen += look_at(image, content, data)
    picture = _to_eight_bits(image, data.levels)
    if is_wide(image):
        seen.append(("high", np.asarray(image).max().item()))
        seen.append(("top", np.asarray(picture).max().item()))
    if is_inverted and is_wide(image):  # Pillow inverts 8 bits itself
        picture = ImageOps.invert(picture)
    return picture if turn is None else picture.transpose(turn)


def decode(
    content: Content,
    name: object,
    size: Size,
    in_chans: int,
    data: DataSpec = UNSET,
    seen: Seen | None = None,
) -> "Tensor":
    """Decode a picture to (in_chans, *size) uint8. Call it inside ``quiet_pillow``.

    The EXIF rotation is applied, transparent pixels become white, 16-bit grey is scaled to 8 bits,
    and the first frame of an animation is used. ``fit``, ``page``, ``channels`` and ``levels`` of
    ``data`` decide what is read; ``seen`` gets what is not (see ``notes_on``). A JPEG much larger
    than needed is decoded at a half, a quarter or an eighth of its size. Other large pictures are
    averaged over whole blocks.
    """
    import torch
    import torch.nn.functional as F

    from vitcli.runner.data.arrays import stretch_to_size

    if data.channels in (None, "grey") and in_chans not in (1, 3):
        raise ConfigError(f"pictures have 1 or 3 channels, model.in_chans is {in_chans}")
    with explain_errors(name, content):
        facts = Seen()
        images, (top, left, height, width) = _load(content, data, size, 2 * max(size), facts)
        mode = "RGB" if in_chans == 3 and data.channels is None else "L"
        shrunk = [_shrink(image, (height, width), mode, data.fit) for image in images]
        if len(shrunk) == 1 and in_chans == 3 and data.channels not in (None, "pages"):
            shrunk *= in_chans  # a grey data set that data.mean colours
        pixels = np.dstack([np.asarray(image) for image in shrunk])
        if pixels.shape[2] != in_chans:
            raise RefusedError(f"has {quantity(len(images), 'page')}, but {in_chans} are needed")
        if seen is not None:
            seen += [(kind, number, printable(name)) for kind, number, *_ in facts]
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    bars = (left, size[1] - width - left, top, size[0] - height - top)
    return F.pad(stretch_to_size(tensor, (height, width)), bars)[0]


def picture_to_draw(
    content: bytes, name: object, size: Size, data: DataSpec = UNSET
) -> tuple[np.ndarray, Box]:
    """Return a picture to draw on, and the box in it that a model of this input size sees.

    The picture is (H, W, 3) uint8 with sides up to ``MAX_SHOWN``; the box is (top, left, height,
    width). The picture includes the black bars of ``pad``. It is not stretched for ``stretch``, so
    the patches of the model are not square on it. Three pages are shown as RGB, of others the
    first.
    """
    with quiet_pillow(), explain_errors(name, content):
        images, filled = _load(content, data, size, MAX_SHOWN, Seen())
        image = Image.merge("RGB", images) if len(images) == 3 else images[0]
        image = _add_bars(image.convert("RGB"), filled, size)
        whole = (0, 0, image.height, image.width)
        box = central_box(image.height, image.width, size) if data.fit == "crop" else whole
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


def _open_checked(file: BinaryIO, page: int = 0) -> Image.Image:
    """Open a page; refuse it if its header shows that decoding it would be expensive."""
    is_heic = _is_heic(file.read(12))
    file.seek(0)
    image = Image.open(file, formats=("HEIF",) if is_heic and can_read_heic() else FORMATS)
    _seek(image, page)
    _refuse_costly(image)
    return image


def _refuse_costly(image: Image.Image) -> None:
    height, width = image.height, image.width
    if height * width > MAX_PIXELS:
        raise RefusedError(
            f"{width}x{height} is more than {MAX_PIXELS // 10**6} megapixels; {SMALLER}"
        )
    if max(height, width) > MAX_RATIO * min(height, width):
        raise RefusedError(f"{width}x{height} has an aspect ratio over {MAX_RATIO}:1; crop it")


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
    image = image.convert(mode).reduce((columns, rows))
    if fit == "crop":
        return _crop_centre(image, *central_box(image.height, image.width, size)[2:])
    return image


def _crop_centre(image: Image.Image, height: int, width: int) -> Image.Image:
    if (height, width) == (image.height, image.width):
        return image
    top, left = (image.height - height) // 2, (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))


def _to_eight_bits(image: Image.Image, levels: tuple[float, float] | None) -> Image.Image:
    """Scale wide grey to 8 bits by levels of black and white; put transparent pixels on white."""
    clear = image.info.get("transparency")
    if is_wide(image):
        wide = np.asarray(image)
        grey = scaled(wide, levels)
        return Image.fromarray(grey if clear is None else np.where(wide == clear, WHITE, grey))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def scaled(wide: np.ndarray, levels: tuple[float, float] | None) -> np.ndarray:
    """Scale values of any shape to uint8 by levels of black and white, by default 0 and 65535."""
    low, high = wide.min().item(), wide.max().item()
    if not np.isfinite([low, high]).all():
        raise RefusedError("has values that are no finite numbers; replace them")
    if levels is None:
        if wide.dtype.kind == "f" or not 0 <= low <= high <= MAX_LEVEL:
            kind = "floating-point numbers" if wide.dtype.kind == "f" else "more than 16 bits"
            black, white = min(low, 0), max(high, type(high)(1))
            raise RefusedError(
                f"its pixels are {kind}, from {low:,.10g} to {high:,.10g}; train with black and"
                f" white of all pictures: -s 'data.levels=[{black:.10g},{white:.10g}]'",
                (black, white),
            )
        return ((wide.astype(np.int64) + 128) // 257).astype(np.uint8)
    black, white = levels
    if (share := (wide > white).mean()) > MOST_ABOVE:
        raise RefusedError(
            f"{percent(share, 0)} of its values are above the white of data.levels, {white:,.10g},"
            f" up to {high:,.10g}; a larger white takes another training",
            (black, high),
        )
    shares = (wide.astype(np.float64) - black) / (white - black)
    return (255 * shares.clip(0, 1)).round().astype(np.uint8)


@contextlib.contextmanager
def explain_errors(name: object, content: Content) -> Iterator[None]:
    """Turn every exception of Pillow into an InputError of one line."""
    try:
        yield
    except MemoryError:
        raise
    except (RefusedError, Image.DecompressionBombError) as error:
        is_ours = isinstance(error, RefusedError)
        reason = error if is_ours else f"over {MAX_PIXELS // 10**6} megapixels; {SMALLER}"
        raise InputError(f"{printable(name)}: {reason}") from error
    except Exception as error:  # decoders raise many kinds, even SyntaxError and KeyError
        reason = ""
        if isinstance(error, UnidentifiedImageError) and isinstance(content, bytes):
            reason = describe_tiff(content)  # by its header, not its pixels
        reason = reason or _diagnose(content)
        raise InputError(f"{printable(name)}: {reason}") from error


def _diagnose(content: Content) -> str:
    if not isinstance(content, bytes):
        return "the picture is damaged or cut short"
    if not content:
        return "the file is empty"
    if _is_heic(content) and not can_read_heic():
        return "a HEIC picture; to read it: pip install pillow-heif"
    tiff = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # others are raw files of cameras
    signatures = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF", b"BM", b"GIF8", *tiff)
    if _is_heic(content) or content.startswith(signatures):
        return (
            "the picture is damaged or cut short, or of a rare kind; get a fresh copy, or save it"
            " again as PNG"
        )
    return "not a picture: PNG, JPEG, WebP, BMP, GIF, TIFF and HEIC can be read; convert it first"


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
