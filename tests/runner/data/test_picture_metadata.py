"""HEIC pictures, intact pixels with damaged metadata, and transparent colours."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from tests.read_picture import read_picture
from vitcli.runner.data import pictures
from vitcli.runner.data.folder import picture_files
from vitcli.runner.data.pictures import (
    can_read_heic,
    decode,
    picture_size,
    picture_to_draw,
    quiet_pillow,
)
from vitcli.runner.errors import InputError

RED = (255, 0, 0)
ORIENTATION = 0x0112


def heic(image: Image.Image, **options) -> bytes:
    pytest.importorskip("pillow_heif")
    assert can_read_heic()
    out = io.BytesIO()
    image.save(out, "HEIF", quality=90, **options)
    return out.getvalue()


def test_heic_is_read_upright(tmp_path):
    wide = np.zeros((64, 96, 3), dtype=np.uint8)
    wide[:32, :32] = RED
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    path = tmp_path / "ä b.HEIC"
    path.write_bytes(heic(Image.fromarray(wide), exif=exif.tobytes()))
    pixels = read_picture(path, size=(12, 8)).int()
    assert (pixels[:, 0, 7] - torch.tensor(RED)).abs().max() < 20
    assert pixels[:, 0, 0].max() < 20
    with quiet_pillow():
        assert picture_size(path) == (96, 64)
    assert picture_files([str(tmp_path)]) == [str(path)]


def test_heic_without_pillow_heif_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "can_read_heic", lambda: False)
    path = tmp_path / "x.heic"
    path.write_bytes(b"\0\0\0\x18ftypheic" + b"\0" * 50)
    with pytest.raises(InputError, match="pip install pillow-heif"):
        read_picture(path, size=(8, 8))


@pytest.mark.parametrize(
    ("size", "reason"),
    [((20_000, 20_000), "megapixels"), ((1000, 8), "20:1"), ((32, 32), "damaged or cut short")],
)
def test_heic_that_lies_about_its_size_is_refused(tmp_path, size, reason):
    content = heic(Image.new("RGB", (64, 64), RED))
    at = content.index(b"ispe") + 8  # the box of the size
    path = tmp_path / "x.heic"
    path.write_bytes(content[:at] + struct.pack(">II", *size) + content[at + 8 :])
    with pytest.raises(InputError, match=reason):
        read_picture(path, size=(8, 8))
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged or cut short"):
        read_picture(path, size=(8, 8))


COLOUR = (30, 180, 60)
SIDE = 16


def chunk(kind: bytes, data: bytes, crc: int | None = None) -> bytes:
    crc = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


END = chunk(b"IEND", b"")


def png(
    row: bytes,
    *extra: bytes,
    depth: int = 8,
    kind: int = 2,
    after: bytes = b"",
    broken: bool = False,
) -> bytes:
    """Return a PNG file of equal rows, with chunks before and after those of the pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, depth, kind, 0, 0, 0))
    packed = zlib.compress((b"\0" + row) * SIDE)
    pixels = chunk(b"IDAT", packed[: len(packed) // 2] if broken else packed)
    middle = b"".join(extra) + pixels + after
    return b"\x89PNG\r\n\x1a\n" + header + middle + END


def jpeg(exif: bytes, size: tuple[int, int] = (SIDE, 2 * SIDE)) -> bytes:
    """Return a JPEG file with EXIF data, lying on its side by default."""
    buffer = io.BytesIO()
    Image.new("RGB", size[::-1], COLOUR).save(buffer, "JPEG", quality=95)
    content = buffer.getvalue()
    segment = b"Exif\0\0" + exif
    return content[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + content[2:]


def exif(*entries: tuple[int, int, int, bytes], tail: bytes = b"") -> bytes:
    packed = [struct.pack("<HHI", *entry[:3]) + entry[3] for entry in entries]
    count = struct.pack("<H", len(packed))
    return b"II*\0\x08\0\0\0" + count + b"".join(packed) + b"\0\0\0\0" + tail


ON_ITS_SIDE = (ORIENTATION, 3, 1, struct.pack("<HH", 6, 0))
OVER_ZERO = struct.pack("<ii", -1, 0)
ROW = bytes(COLOUR) * SIDE
BIG = b"x" * 3_000_000
TEXTS = {
    "text": chunk(b"zTXt", b"key\0\0" + zlib.compress(BIG)),
    "XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(BIG)),
    "profile": chunk(b"iCCP", b"p\0\0" + zlib.compress(BIG)),
    "EXIF": chunk(b"eXIf", b"\0\x08\0\x02\x01\x12\0\x03"),
    "checksum": chunk(b"tEXt", b"a\0b", crc=1),
}


def assert_is_read(tmp_path, content: bytes, size: tuple[int, int]) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with quiet_pillow():
        pixels = decode(content, "x", (8, 8), 3)
        assert picture_size(path) == size
    drawn, _ = picture_to_draw(content, "x", (8, 8))
    assert drawn.shape[:2] == size
    middle = torch.tensor(COLOUR)
    assert (pixels[:, 4, 4].int() - middle).abs().max() <= 3
    assert (torch.from_numpy(drawn[4, 4].astype(int)) - middle).abs().max() <= 3


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_unreadable_metadata_of_a_png_file_is_ignored_but_no_damaged_pixels(tmp_path, text):
    assert_is_read(tmp_path, png(ROW, text), (SIDE, SIDE))
    assert_is_read(tmp_path, png(ROW, after=text), (SIDE, SIDE))
    for content in (png(ROW, text, broken=True), png(ROW, broken=True)):
        with pytest.raises(InputError, match="damaged"), quiet_pillow():
            decode(content, "x", (8, 8), 3)


@pytest.mark.parametrize(
    ("data", "turned"),
    [
        (exif(ON_ITS_SIDE, (0x11A, 10, 1, struct.pack("<I", 38)), tail=OVER_ZERO), True),
        (exif(ON_ITS_SIDE, (0x8769, 3, 1, struct.pack("<HH", 9, 0))), True),
        (exif(ON_ITS_SIDE, (0x10F, 2, 500, struct.pack("<I", 90_000))), True),
        (exif((ORIENTATION, 2, 2, b"z\0\0\0")), False),
        (exif((ORIENTATION, 3, 1, struct.pack("<HH", 77, 0))), False),
        (b"II*\0\x08\0\0\0\x05\0\x12\x01", False),
    ],
)
def test_one_exif_value_decides_the_turn_and_no_other_is_needed(tmp_path, data, turned):
    assert_is_read(tmp_path, jpeg(data), (2 * SIDE, SIDE) if turned else (SIDE, 2 * SIDE))


WIDE = struct.pack(">HHH", 0xC000, 0x4000, 0x2000)


@pytest.mark.parametrize(
    ("row", "depth", "kind", "clear", "shown"),
    [
        (b"\x40\x00" * SIDE, 16, 0, b"\x40\x00", 255),
        (b"\x40\x00" * SIDE, 16, 0, b"\x40\x01", 64),
        (b"\x40" * SIDE, 8, 0, b"\x00\x40", 255),
        (b"\xaa" * (SIDE // 4), 2, 0, b"\x00\x02", 255),
        (b"\x00" * (SIDE // 8), 1, 0, b"\x00\x00", 255),
        (b"\x00" * (SIDE // 8), 1, 0, b"\x00\x01", 0),
        (ROW, 8, 2, bytes((0, 30, 0, 180, 0, 60)), 255),
        (WIDE * SIDE, 16, 2, WIDE, 255),
        (WIDE * SIDE, 16, 2, bytes((0, 0xC0, 0, 0x40, 0, 0x20)), 192),
    ],
)
def test_a_transparent_colour_becomes_white_at_any_depth(row, depth, kind, clear, shown):
    content = png(row, chunk(b"tRNS", clear), depth=depth, kind=kind)
    with quiet_pillow():
        assert decode(content, "x", (8, 8), 3)[0, 4, 4] == shown
