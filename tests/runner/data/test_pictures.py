"""Pictures of every kind become pixels; whatever is not one becomes one line."""

import io
import os
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitcli.core.spec import DataSpec
from vitcli.runner.data import pictures
from vitcli.runner.data.arrays import stretch_to_size
from vitcli.runner.data.folder import picture_files
from vitcli.runner.data.picture_reader import read_each
from vitcli.runner.data.pictures import (
    FITS,
    can_read_heic,
    decode,
    picture_size,
    picture_to_draw,
    quiet_pillow,
)
from vitcli.runner.errors import InputError

RED, WHITE = (255, 0, 0), (255, 255, 255)
ORIENTATION = 0x0112


def fitted(fit: Any) -> DataSpec:
    return DataSpec(name="imagefolder:x", fit=fit)


def read_picture(path, *, size: tuple[int, int], in_chans: int = 3, fit: str = "crop"):
    (picture,) = read_each([str(path)], size, in_chans, fitted(fit))
    if isinstance(picture, InputError):
        raise picture
    return picture


def heic(image: Image.Image, **options) -> bytes:
    pytest.importorskip("pillow_heif")
    assert can_read_heic()
    out = io.BytesIO()
    image.save(out, "HEIF", quality=90, **options)
    return out.getvalue()


def test_heic_is_read_upright(tmp_path):
    wide = np.zeros((64, 96, 3), dtype=np.uint8)
    wide[:32, :32] = RED
    path = tmp_path / "ä b.HEIC"
    path.write_bytes(heic(Image.fromarray(wide), exif=EXIF_6.tobytes()))
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


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, pixels: bytes, depth: int, kind: int, *more: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
    content = chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(more) + content + chunk(b"IEND", b"")


def jpeg_with(exif: bytes, size: tuple[int, int] = (SIDE, 2 * SIDE)) -> bytes:
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
    content, size = jpeg_with(data), (2 * SIDE, SIDE) if turned else (SIDE, 2 * SIDE)
    (tmp_path / "x").write_bytes(content)
    with quiet_pillow():
        pixels = decode(content, "x", (8, 8), 3)
        assert picture_size(tmp_path / "x") == size
    drawn, _ = picture_to_draw(content, "x", (8, 8))
    assert drawn.shape[:2] == size
    middle = torch.tensor(COLOUR)
    assert (pixels[:, 4, 4].int() - middle).abs().max() <= 3
    assert (torch.from_numpy(drawn[4, 4].astype(int)) - middle).abs().max() <= 3


@pytest.mark.parametrize(
    ("row", "depth", "kind", "clear", "shown"),
    [
        (b"\x40\x00" * SIDE, 16, 0, b"\x40\x00", 255),
        (b"\x40\x00" * SIDE, 16, 0, b"\x40\x01", 64),
        (b"\x40" * SIDE, 8, 0, b"\x00\x40", 255),
        (ROW, 8, 2, bytes((0, 30, 0, 180, 0, 60)), 255),
    ],
)
def test_a_transparent_colour_becomes_white_at_any_depth(row, depth, kind, clear, shown):
    content = png(SIDE, SIDE, (b"\0" + row) * SIDE, depth, kind, chunk(b"tRNS", clear))
    with quiet_pillow():
        assert decode(content, "x", (8, 8), 3)[0, 4, 4] == shown


@pytest.fixture
def picture(tmp_path):
    def save(image, name="x.png", **options):
        path = tmp_path / name
        image.save(path, **options)
        return path

    return save


def corner(pixels: torch.Tensor) -> tuple[int, ...]:
    return tuple(pixels[:, 0, 0].tolist())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(picture, orientation):
    upright = np.zeros((8, 8, 3), dtype=np.uint8)
    upright[0, 0] = RED
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    pixels = read_picture(picture(Image.fromarray(upright), exif=exif), size=(8, 8))
    row, column = (pixels[0] == 255).nonzero()[0].tolist()
    corners = [(0, 0), (0, 7), (7, 7), (7, 0)] * 2
    assert (row, column) == corners[orientation - 1]


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_a_turned_picture_has_its_upright_size(picture, suffix):
    """Pillow turns the size of a TIFF file by itself, in some versions before it is loaded."""
    path = picture(Image.new("RGB", (20, 40), "white"), f"x.{suffix}", exif=EXIF_6)
    assert picture_size(path) == (20, 40)
    shown = read_picture(path, size=(40, 40), fit="pad")[0]
    assert (shown.amax(1) > 0).sum() == 20
    assert (shown.amax(0) > 0).sum() == 40


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_is_white(picture, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert(mode)
    options = {"transparency": image.getpixel((0, 0))} if mode == "P" else {}
    assert corner(read_picture(picture(image, **options), size=(4, 4))) == WHITE


def test_cmyk_black_and_white_and_one_bit(picture):
    black = picture(Image.new("CMYK", (16, 16), (0, 0, 0, 255)), "x.jpg", quality=100)
    assert max(corner(read_picture(black, size=(16, 16)))) < 5
    assert corner(read_picture(picture(Image.new("1", (4, 4), 1)), size=(4, 4))) == WHITE


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "bmp", "gif"])
def test_formats_are_told_by_content(picture, kind, tmp_path):
    path = picture(Image.new("RGB", (8, 8), WHITE), f"x.{kind}")
    assert corner(read_picture(path.rename(tmp_path / "x.dat"), size=(8, 8))) == WHITE


def test_a_jpeg_is_not_decoded_smaller_than_needed(picture):
    blocks = np.random.default_rng(0).integers(0, 256, (100, 100), dtype=np.uint8)
    image = Image.fromarray(blocks.repeat(4, 0).repeat(4, 1))
    paths = (picture(image, name, quality=95) for name in ("x.png", "x.jpg"))
    png, jpg = (read_picture(path, size=(200, 200)).float() for path in paths)
    assert (png - jpg).abs().mean() < 5


def landmarks(height: int, width: int) -> Image.Image:
    """Red grows downwards, green to the right; the corner at the top left is blue."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0] = np.linspace(40, 250, height)[:, None]
    pixels[..., 1] = np.linspace(40, 250, width)
    pixels[: height // 4, : width // 4, 2] = 250
    return Image.fromarray(pixels)


EXIF_6 = Image.Exif()
EXIF_6[ORIENTATION] = 6
TURNED = landmarks(300, 700).transpose(Image.Transpose.ROTATE_90)
"""As a camera held upright stores it; orientation 6 turns it back."""
KINDS = {
    "tiny.png": (landmarks(6, 15), {}),
    "wide.png": (landmarks(120, 317), {}),
    "tall.png": (landmarks(900, 411), {}),
    "huge.jpg": (landmarks(600, 1600), {"quality": 95}),
    "long.png": (landmarks(100, 2000), {}),
    "turned.jpg": (TURNED, {"exif": EXIF_6, "quality": 95}),
    "clear.png": (landmarks(90, 40).convert("RGBA"), {}),
    "wide-model.png": (landmarks(300, 300), {}),
}


def difference(picture, fit: str, shown_fit: str, size: tuple[int, int]) -> float:
    """Mean difference between what a model sees and the box of what is shown, 0 to 255."""
    content = picture.read_bytes()
    pixels, (top, left, height, width) = picture_to_draw(content, picture, size, fitted(shown_fit))
    box = torch.from_numpy(pixels[top : top + height, left : left + width]).permute(2, 0, 1)
    seen = read_picture(picture, size=size, fit=fit)
    return (seen.float() - stretch_to_size(box[None], size)[0]).abs().mean().item()


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("name", KINDS)
def test_the_box_of_the_shown_picture_is_what_the_model_sees(picture, name, fit):
    image, options = KINDS[name]
    path = picture(image, name, **options)
    size = (16, 48) if name == "wide-model.png" else (32, 32)
    assert difference(path, fit, fit, size) < 2.5
    for other in {*FITS} - {fit}:
        assert difference(path, fit, other, size) > 8, "another fit shows something else"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (bytes(range(256)), "not a picture"),
        (jpeg_with(b"", (640, 640))[:-600], "damaged or cut short"),
        (png(20_000, 20_000, bytes(100), 8, 2), "megapixels"),
        (png(11_000, 11_000, bytes(100), 8, 2), "megapixels"),
        (png(100_000, 2, bytes(100), 8, 2), "20:1"),
        (png(64, 64, bytes(100), 8, 2), "damaged or cut short"),
        (b"II*\0" + b"\0" * 50, "damaged"),
        (b"IIRO\x08\0\0\0" + b"\0" * 50, "not a picture"),  # a camera's raw file
    ],
)
def test_what_is_not_a_picture_is_one_line_with_name_and_reason(tmp_path, content, reason):
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        read_picture(path, size=(8, 8))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_a_folder_a_device_and_nothing_are_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reasons = {pipe: "pipe", tmp_path: "folder", "/dev/zero": "device", "a\0b": "cannot be opened"}
    for path, reason in (reasons | {tmp_path / "none": "No such file"}).items():
        with pytest.raises(InputError, match=reason):
            read_picture(path, size=(8, 8))


@pytest.mark.parametrize("size", [(24, 1), (1, 24), (1, 1), (24, 2)], ids=str)
def test_pictures_of_few_rows_or_columns_are_resized_as_pillow_does(size):
    pixels = torch.randint(0, 256, (2, 3, 55, 20), dtype=torch.uint8)
    planes = [Image.fromarray(plane.numpy()) for plane in pixels.flatten(0, 1)]
    resized = [np.asarray(p.resize(size[::-1], Image.Resampling.BILINEAR)) for p in planes]
    difference = stretch_to_size(pixels, size).flatten(0, 1).int() - torch.tensor(np.stack(resized))
    assert difference.abs().max() <= 1
