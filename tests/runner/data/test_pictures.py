"""Pictures of every kind become pixels; whatever is not one becomes one line."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from tests.read_picture import read_picture
from tests.runner.data.test_picture_metadata import END, chunk
from vitcli.runner.data.arrays import stretch_to_size
from vitcli.runner.data.pictures import FITS, picture_size, picture_to_draw
from vitcli.runner.errors import InputError
from vitcli.runner.text import printable

RED, WHITE = (255, 0, 0), (255, 255, 255)
ORIENTATION = 0x0112


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


@pytest.mark.parametrize("value", [-1, 65536])
def test_more_than_16_bits_are_refused(picture, value):
    levels = np.full((4, 4), value, np.int32)
    with pytest.raises(InputError, match="more than 16 bits"):
        read_picture(picture(Image.fromarray(levels), "x.tiff"), size=(4, 4))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_is_white(picture, mode):
    image = Image.new("RGBA", (4, 4), (0, 0, 0, 0)).convert(mode)
    options = {"transparency": image.getpixel((0, 0))} if mode == "P" else {}
    assert corner(read_picture(picture(image, **options), size=(4, 4))) == WHITE


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (40000, 156), (65535, 255)])
def test_sixteen_bit_grey_is_scaled_not_clipped(picture, value, expected):
    path = picture(Image.fromarray(np.full((4, 4), value, dtype=np.uint16)))
    with Image.open(path) as image:
        assert image.mode.startswith("I")
    assert corner(read_picture(path, size=(4, 4))) == (expected,) * 3
    assert corner(read_picture(path, size=(4, 4), in_chans=1)) == (expected,)


def test_sixteen_bit_tiff_may_count_from_white(picture):
    path = picture(Image.fromarray(np.full((4, 4), 40000, np.uint16)), "x.tiff")
    assert corner(read_picture(path, size=(4, 4))) == (156,) * 3
    black_is_zero, white_is_zero = (struct.pack("<HHLL", 0x0106, 3, 1, tag) for tag in (1, 0))
    content = path.read_bytes()
    assert content.count(black_is_zero) == 1
    path.write_bytes(content.replace(black_is_zero, white_is_zero))
    assert corner(read_picture(path, size=(4, 4))) == (99,) * 3


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
    png, jpg = [
        read_picture(picture(image, name, quality=95), size=(200, 200)).float()
        for name in ("x.png", "x.jpg")
    ]
    assert (png - jpg).abs().mean() < 5


def landmarks(height: int, width: int) -> Image.Image:
    """Red grows downwards, green to the right; the corner at the top left is blue."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[..., 0] = np.linspace(40, 250, height)[:, None]
    pixels[..., 1] = np.linspace(40, 250, width)
    pixels[: height // 4, : width // 4, 2] = 250
    return Image.fromarray(pixels)


def turned(image: Image.Image) -> Image.Image:
    """As a camera held upright stores it; orientation 6 turns it back."""
    return image.transpose(Image.Transpose.ROTATE_90)


EXIF_6 = Image.Exif()
EXIF_6[ORIENTATION] = 6
KINDS = {
    "tiny.png": (landmarks(6, 15), {}),
    "wide.png": (landmarks(120, 317), {}),
    "tall.png": (landmarks(900, 411), {}),
    "huge.jpg": (landmarks(600, 1600), {"quality": 95}),
    "long.png": (landmarks(100, 2000), {}),
    "turned.jpg": (turned(landmarks(300, 700)), {"exif": EXIF_6, "quality": 95}),
    "clear.png": (landmarks(90, 40).convert("RGBA"), {}),
    "wide-model.png": (landmarks(300, 300), {}),
}


def difference(picture, fit: str, shown_fit: str, size: tuple[int, int]) -> float:
    """Mean difference between what a model sees and the box of what is shown, 0 to 255."""
    content = picture.read_bytes()
    pixels, (top, left, height, width) = picture_to_draw(content, picture, size, shown_fit)
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


@pytest.mark.parametrize("fit", FITS)
def test_a_fit_in_grey_sixteen_bits_and_behind_glass(picture, fit):
    wide = picture(Image.fromarray(np.full((10, 30), 40000, dtype=np.uint16)), "wide.png")
    seen = read_picture(wide, size=(6, 6), in_chans=1, fit=fit)
    assert seen.shape == (1, 6, 6)
    assert set(seen.unique().tolist()) == ({0, 156} if fit == "pad" else {156})
    glass = picture(Image.new("RGBA", (30, 10), (0, 0, 0, 0)), "glass.png")
    seen = read_picture(glass, size=(6, 6), fit=fit)
    assert corner(seen) == ((0, 0, 0) if fit == "pad" else WHITE), "bars are black, glass is white"
    assert (seen[:, 3] == 255).all()


def png_header(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + END


def jpeg() -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello, I am text\n" * 9, "text, not a picture"),
        (bytes(range(256)), "a file, not a picture"),
        (jpeg()[:-600], "damaged or cut short"),
        (png_header(20_000, 20_000), "megapixels"),
        (png_header(11_000, 11_000), "megapixels"),
        (png_header(100_000, 2), "20:1"),
        (png_header(64, 64), "damaged or cut short"),
        (b"\0\0\0\x18ftypavif" + b"\0" * 50, "magick FILE.avif FILE.png"),
        (b"II*\0" + b"\0" * 50, "damaged"),
        (b"P6\n# by hand\n8 8\n255\n" + b"\0" * 192, "a PPM picture"),
        (b"P3 is a part of the brain\n", "text, not a picture"),
        (b"\0\0\0\x0cjP  \r\n\x87\n" + b"\0" * 50, "a JPEG 2000 picture"),
        (b"<?xml version='1.0'?>\n<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG drawing"),
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
    for path, reason in [
        (pipe, "pipe"),
        (tmp_path, "folder"),
        ("/dev/zero", "device"),
        (tmp_path / "none", "No such file"),
        ("a\0b", "cannot be opened"),
    ]:
        with pytest.raises(InputError, match=reason):
            read_picture(path, size=(8, 8))


def test_names_are_shown_without_their_control_characters(tmp_path):
    with pytest.raises(InputError, match=r"evil\\x1b\[31m\\nname"):
        read_picture(tmp_path / "evil\x1b[31m\nname", size=(8, 8))
    assert printable("caf\u00e9") == "caf\u00e9"
    assert printable("\udcff") == r"\udcff"
