"""The recipe of an export sees in a picture what `predict` sees, with Pillow and numpy alone."""

import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.runner.data.test_deep import raw_tiff
from vitcli.core.spec import DataSpec
from vitcli.plugins.exports import recipe
from vitcli.runner.data.pictures import FITS, decode, quiet_pillow

Kind = tuple[str, tuple[int, int], str, dict[str, Any]]


def turned(orientation: int) -> dict[str, Any]:
    exif = Image.Exif()
    exif[recipe.ORIENTATION] = orientation
    return {"exif": exif}


KINDS: dict[str, Kind] = {
    "a.jpg": ("RGB", (608, 593), "JPEG", {}),
    "large.jpg": ("RGB", (1203, 901), "JPEG", {"progressive": True} | turned(6)),
    "almost-square.jpg": ("RGB", (799, 800), "JPEG", turned(5)),
    "grey.jpg": ("L", (401, 133), "JPEG", turned(2)),
    "cmyk.jpg": ("CMYK", (150, 210), "JPEG", turned(7)),
    "a.png": ("RGB", (191, 200), "PNG", turned(3)),
    "small.png": ("RGB", (9, 20), "PNG", turned(4)),
    "narrow.png": ("L", (17, 330), "PNG", {}),
    "bits.png": ("1", (121, 83), "PNG", {}),
    "deep.png": ("I;16", (210, 333), "PNG", turned(8)),
    "deep-clear.png": ("I;16", (64, 48), "PNG", {"transparency": 30000}),
    "grey-alpha.png": ("LA", (77, 50), "PNG", {}),
    "alpha.png": ("RGBA", (140, 260), "PNG", turned(7)),
    "palette.png": ("P", (100, 81), "PNG", {"transparency": 3}),
    "clear.png": ("RGB", (96, 96), "PNG", {"transparency": (0, 0, 0)}),
    "a.webp": ("RGBA", (205, 410), "WEBP", turned(6)),
    "a.gif": ("P", (90, 91), "GIF", {"transparency": 3}),
    "a.bmp": ("RGB", (33, 31), "BMP", {}),
    "a.tif": ("RGB", (300, 222), "TIFF", turned(6)),
    "packed.tif": ("RGBA", (130, 70), "TIFF", {"compression": "tiff_lzw"} | turned(8)),
    "inverted.tif": ("I;16", (70, 130), "TIFF", {"tiffinfo": {recipe.PHOTOMETRIC: 0}}),
    "broken-exif.jpg": ("RGB", (60, 90), "JPEG", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"}),
}
"""Name -> mode, width and height, format and options of a picture."""


def picture(kind: Kind) -> bytes:
    mode, (width, height), form, options = kind
    generator = np.random.default_rng(width)
    coarse = generator.integers(0, 256, (height // 6 + 2, width // 6 + 2, 4), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    if mode == "I;16":
        levels = np.asarray(image.convert("L")).astype(np.uint16) * 257
        levels[: height // 3] += generator.integers(0, 256, dtype=np.uint16)
        levels[height // 2] = options.get("transparency", 0)
        image = Image.fromarray(levels)
    elif mode == "P":
        image = image.convert("RGB").quantize(32)
    elif mode != "RGBA":
        image = image.convert("RGB").convert(mode)
        image = Image.merge("LA", [image.getchannel(0)] * 2) if mode == "LA" else image
    if options.get("transparency") == (0, 0, 0):
        image.paste((0, 0, 0), (10, 20, 50, 60))
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def metadata(size: tuple[int, int], channels: int, fit: str) -> dict[str, Any]:
    colours = {1: "grey", 3: "RGB"}[channels]
    settings = {"fit": fit, "colours": colours, "height": size[0], "width": size[1]}
    normalisation = {"mean": [0.0] * channels, "std": [1.0] * channels}
    return {"preprocessing": recipe.STEPS | settings} | normalisation


@pytest.mark.parametrize("name", KINDS)
def test_pixels_are_those_of_predict_but_for_rounding(name):
    content = picture(KINDS[name])
    with quiet_pillow():
        for fit in FITS:
            read_as = DataSpec(name="imagefolder:x", fit=fit)
            for size, channels in (((32, 32), 3), ((20, 48), 1)):
                steps = metadata(size, channels, fit)
                pixels = decode(content, name, size, channels, read_as).numpy()
                image = Image.open(io.BytesIO(content))
                for source in (io.BytesIO(content), image):
                    prepared = recipe.prepare(source, steps)
                    assert (prepared.dtype, prepared.shape) == (np.float32, pixels.shape)
                    difference = np.abs(255 * prepared - pixels)
                    assert difference.max() < 1.01, (fit, size)
                    assert (difference > 0.5).mean() < 0.01, (fit, size)


@pytest.mark.parametrize(
    ("pixels", "reason"),
    [
        (np.full((8, 8), 0.5, np.float32), "floating-point"),
        (np.full((8, 8), 70000, np.int32), "more than 16 bits"),
        (np.full((8, 8), -1, np.int32), "more than 16 bits"),
    ],
    ids=["float", "large", "negative"],
)
def test_pixels_that_have_no_eight_bits_are_refused(pixels, reason):
    with pytest.raises(ValueError, match=reason):
        recipe.prepare(Image.fromarray(pixels), metadata((32, 32), 3, "crop"))


def test_signed_numbers_of_eight_bits_are_refused_as_by_vitcli():
    content = raw_tiff(np.full((1, 8, 8), -9, "i1"), kind=2)
    with pytest.raises(ValueError, match="signed numbers of 8 bits"):
        recipe.prepare(io.BytesIO(content), metadata((32, 32), 3, "crop"))


@pytest.mark.parametrize(
    ("change", "follows"),
    [
        ({}, True),
        ({"fit": "pad"}, True),
        ({"version": 2}, False),
        ({"levels": [0, 4095]}, False),
        ({"16 bits": "level // 256"}, False),
        ({"colours": "not for picture files"}, False),
    ],
    ids=str,
)
def test_other_steps_are_not_taken_for_those_of_the_recipe(change, follows):
    steps = metadata((32, 32), 3, "crop")["preprocessing"]
    assert recipe.can_follow(steps | change) is follows
    assert not recipe.can_follow({name: steps[name] for name in steps.keys() - {"draft"}})


def test_the_page_shows_the_recipe():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "weights.md"
    assert f"```python\n{inspect.getsource(recipe.prepare)}```" in page.read_text()
