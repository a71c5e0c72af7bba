"""HEIC pictures, with pillow-heif and without."""

import io
import struct

import numpy as np
import pytest
import torch
from PIL import Image

from tests.read_picture import read_picture
from vitcli.runner.data import pictures
from vitcli.runner.data.folder import picture_files
from vitcli.runner.data.pictures import can_read_heic, picture_size, quiet_pillow
from vitcli.runner.errors import InputError

RED = (255, 0, 0)
ORIENTATION = 0x0112


def heic(image: Image.Image, **options) -> bytes:
    """Return a HEIC file; skip the test without pillow-heif."""
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
