"""Pages, channels and values of more than 8 bits become pixels as the fields of ``data`` say."""

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.runner.data.test_pictures import png
from vitcli.core.spec import DataSpec
from vitcli.runner.data.deep import Seen, pages_of
from vitcli.runner.data.load import describe_data, load_data
from vitcli.runner.data.pictures import decode, picture_to_draw, quiet_pillow
from vitcli.runner.errors import ConfigError, InputError

SIDE = 16
COLOURED = Image.new("RGB", (SIDE, SIDE), (250, 100, 10))


def as_read(**fields) -> DataSpec:
    return DataSpec(name="imagefolder:x", **fields)


def flat(value: float, dtype: str = "u2", size: tuple[int, int] = (SIDE, SIDE)) -> Image.Image:
    return Image.fromarray(np.full(size, value, dtype))


def tiff(*pages: Image.Image, **options) -> bytes:
    file = io.BytesIO()
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:], **options)
    return file.getvalue()


def raw_tiff(
    values: np.ndarray, *, photometric: int = 1, kind: int = 1, extra: tuple[int, ...] = ()
) -> bytes:
    """Return a TIFF file of values (channels, H, W), stored one channel after the other."""
    channels, height, width = values.shape
    size = values.nbytes // channels
    tags = [
        *[(256, (width,)), (257, (height,)), (258, (8 * values.itemsize,) * channels)],
        *[(259, (1,)), (262, (photometric,)), (277, (channels,)), (278, (height,)), (284, (2,))],
        *[(273, tuple(range(channels))), (279, (size,) * channels), (339, (kind,) * channels)],
        *([(338, extra)] if extra else []),
    ]
    tags.sort()
    end = 8 + 2 + 12 * len(tags) + 4
    pixels = end + sum(4 * len(numbers) for _, numbers in tags if len(numbers) > 1)
    directory, more = struct.pack("<H", len(tags)), b""
    for tag, numbers in tags:
        numbers = tuple(pixels + size * n for n in numbers) if tag == 273 else numbers
        packed = struct.pack(f"<{len(numbers)}I", *numbers)
        place = packed if len(numbers) == 1 else struct.pack("<I", end + len(more))
        directory += struct.pack("<HHI", tag, 4, len(numbers)) + place
        more += packed if len(numbers) > 1 else b""
    return b"II*\0\x08\0\0\0" + directory + bytes(4) + more + values.tobytes()


def png_of_colours(value: int) -> bytes:
    return png(SIDE, SIDE, (b"\0" + struct.pack(">HHH", *[value] * 3) * SIDE) * SIDE, 16, 2)


STACK = tiff(flat(1000), flat(2000), flat(3000))
WIDE = tiff(flat(0, "u1", (1000, 1600)), compression="tiff_deflate")
FIRST_WHITE = tiff(flat(1000), tiffinfo={262: 0})
SIGNED = tiff(flat(-500, "i4"), flat(500))


@pytest.mark.parametrize(
    ("content", "fields", "in_chans", "expected"),
    [
        (STACK, {}, 3, (4, 4, 4)),
        (STACK, {"page": 1, "levels": 4095}, 3, (125, 125, 125)),
        (STACK, {"channels": "pages", "levels": 4095}, 3, (62, 125, 187)),
        (STACK, {"channels": [2, 0], "levels": [0, 4095]}, 2, (187, 62)),
        (STACK, {"channels": [1], "levels": 4095}, 3, (125, 125, 125)),
        (STACK, {"channels": "pages", "levels": [1500, 3500]}, 3, (0, 64, 191)),
        (STACK, {"channels": "grey", "levels": 1000}, 1, (255,)),
        (SIGNED, {"channels": "pages", "levels": [-1e3, 1e3]}, 2, (64, 191)),
        (tiff(flat(0.25, "f4")), {"levels": 1.0}, 3, (64, 64, 64)),
        (tiff(flat(100, "u1"), flat(2000)), {"channels": "pages", "levels": 4000}, 2, (100, 128)),
        (tiff(COLOURED), {"levels": 4095}, 3, (250, 100, 10)),
        (tiff(COLOURED), {"channels": "grey"}, 3, (135, 135, 135)),
        (FIRST_WHITE, {"levels": 4000}, 1, (191,)),
        (raw_tiff(np.full((1, 8, 8), 0.25, "f4"), photometric=0, kind=3), {"levels": 1}, 1, (191,)),
        (png_of_colours(65535), {}, 3, (255, 255, 255)),
    ],
)
def test_fields_decide_which_values_become_which_pixels(content, fields, in_chans, expected):
    with quiet_pillow():
        pixels = decode(content, "x", (8, 8), in_chans, as_read(**fields))
    assert pixels.shape == (in_chans, 8, 8)
    assert tuple(pixels[:, 4, 4].tolist()) == expected
    drawn, _ = picture_to_draw(content, "x", (8, 8), as_read(**fields))
    shown = expected if len(expected) == 3 else (expected[0],) * 3
    assert tuple(drawn[4, 4].tolist()) == shown


NOISE = np.arange(6 * SIDE * SIDE).reshape(6, SIDE, SIDE)
SPOTS = (NOISE * (NOISE % 3 == 0))[:4].astype("u1")
PNG_OF_SPOTS, PNG_OF_DRAWING = (
    png(SIDE, SIDE, b"".join(b"\0" + row.tobytes() for row in values.transpose(1, 2, 0)), 8, 6)
    for values in (SPOTS, SPOTS * np.array([[[0]], [[0]], [[0]], [[1]]], "u1"))
)


@pytest.mark.parametrize(
    ("content", "fields", "reason"),
    [
        (raw_tiff(NOISE.astype("u2")), {}, "6 channels of 16-bit whole .* save each channel"),
        (raw_tiff(NOISE[:3].astype("u2"), extra=(0, 0)), {}, "3 channels of 16-bit whole numbers"),
        (raw_tiff(NOISE[:1].astype("f8"), kind=3), {}, "1 channel of 64-bit floating-point"),
        (raw_tiff(NOISE[:1].astype("c8"), kind=6), {}, "1 channel of 64-bit complex numbers"),
        (raw_tiff(NOISE[:3].astype("u2"), photometric=2), {}, "colours with more than 8 bits"),
        (raw_tiff(NOISE.astype("u2"))[:100], {}, "damaged or cut short"),
        (
            tiff(flat(9, "u1"), tiffinfo={254: 1}),
            {},
            "a smaller copy, as in a raw file",
        ),
        (png_of_colours(4000), {"levels": 4095}, "colours with more than 8 bits"),
        (tiff(flat(0.5, "f4")), {}, r"floating-point numbers, .*'data\.levels=\[0,1\]'"),
        (tiff(flat(70_000, "i4")), {}, r"more than 16 bits, .*'data\.levels=\[0,70000\]'"),
        (raw_tiff(NOISE[:1].astype("i1"), kind=2), {}, "signed numbers of 8 bits cannot be read"),
        (raw_tiff(NOISE[:1].astype("u4") << 24), {"levels": 1e9}, "unsigned numbers of 32 bits"),
        (tiff(flat(np.nan, "f4")), {"levels": 1}, "no finite numbers"),
        (STACK, {"page": 3}, "no page 3"),
        (STACK, {"channels": [0, 3]}, "no page 3"),
        (tiff(flat(1), flat(2)), {"channels": "pages"}, "2 pages, but 3 are needed"),
        (tiff(flat(9)), {"channels": "pages"}, "1 page, but 3 are needed"),
        (png(SIDE, SIDE, (b"\0" + bytes(SIDE)) * SIDE, 8, 0), {"channels": "pages"}, "1 page, but"),
        (tiff(COLOURED, flat(2)), {"channels": "pages"}, "page 0 has colours"),
        (tiff(flat(1), flat(2, size=(8, 8))), {"channels": "pages"}, "page 1 has another size"),
        (WIDE, {"channels": [0] * 64}, "its pages have over 100 megapixels"),
        (STACK, {"levels": 500}, "100 % of its values are above the white"),
    ],
)
def test_what_cannot_be_read_so_is_one_line_that_helps(content, fields, reason):
    seen = Seen()
    with quiet_pillow(), pytest.raises(InputError, match=reason) as caught:
        decode(content, "x", (8, 8), 3, as_read(**fields), seen)
    assert "\n" not in str(caught.value)
    assert not [kind for kind, *_ in seen if kind == "grey"], "what is refused has no note"


@pytest.mark.parametrize(("hot", "is_read"), [(2, True), (3, False)])
def test_few_hot_pixels_become_white_and_more_are_refused(hot, is_read):
    values = np.full((SIDE, SIDE), 1000, "u2")
    values[0, :hot] = 60_000
    content = tiff(Image.fromarray(values))
    with quiet_pillow():
        if is_read:
            pixels = decode(content, "x", (SIDE, SIDE), 1, as_read(levels=2000))
            assert pixels[0, 0].tolist() == [255] * hot + [128] * (SIDE - hot)
        else:
            with pytest.raises(InputError, match="1 % of its values"):
                decode(content, "x", (SIDE, SIDE), 1, as_read(levels=2000))


def test_without_fields_every_16_bit_value_has_the_pixel_of_earlier_versions():
    values = np.arange(2**16, dtype="u2").reshape(256, 256)
    with quiet_pillow():
        pixels = decode(tiff(Image.fromarray(values)), "x", (256, 256), 1)
        inverted = decode(tiff(Image.fromarray(values), tiffinfo={262: 0}), "x", (256, 256), 1)
    expected = (values.astype(int) + 128) // 257
    assert np.array_equal(pixels[0].numpy(), expected)
    assert np.array_equal(inverted[0].numpy(), (65_535 - values.astype(int) + 128) // 257)


def test_pages_that_point_at_themselves_or_are_damaged_end():
    two = tiff(flat(1), flat(2))
    first = struct.unpack_from("<I", two, 4)[0]
    at = first + 2 + 12 * struct.unpack_from("<H", two, first)[0]
    for target, count in ((first, 1), (len(two) - 3, 2)):
        content = two[:at] + struct.pack("<I", target) + two[at + 4 :]
        seen = Seen()
        with quiet_pillow(), Image.open(io.BytesIO(content)) as image:
            assert len(pages_of(image)) == count
            assert decode(content, "x", (8, 8), 3, seen=seen).shape == (3, 8, 8)
        assert [number for kind, number, *_ in seen if kind == "pages"] == [count] * (count > 1)


def folder(root: Path, content: bytes, suffix: str = "tif") -> str:
    """Write a folder of two classes with 5 pictures each, which differ in bytes after the end."""
    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for number in range(5):
            (root / label / f"{number}.{suffix}").write_bytes(content + f"{label}{number}".encode())
    return f"imagefolder:{root}"


def notes(spec: DataSpec) -> list[str]:
    told: list[str] = []
    load_data(spec.replace(allow_leaks=True), on_message=told.append)
    return [
        text
        for text in told
        if any(word in text for word in ("page", "channel", "16-bit", "levels"))
    ]


SMALL = flat(9, "u1", (8, 8))
SMALL.encoderinfo = {"tiffinfo": {254: 1}}  # a smaller copy of another page


@pytest.mark.parametrize(
    ("content", "fields", "expected"),
    [
        (STACK, {}, ["10 pictures with up to 3", "reach 1,000 of"]),
        (STACK, {"levels": 4095}, ["data.channels=pages"]),
        (STACK, {"channels": "pages"}, ["10 pictures reach 3,000 .*data.levels=4095"]),
        (STACK, {"channels": "pages", "levels": 4095}, []),
        (STACK, {"page": 0, "levels": 4095}, []),
        (
            STACK,
            {"page": 0, "levels": [1000, 4095]},
            ["nearly black: 10 of 10 pictures"],
        ),
        (
            tiff(flat(7), flat(0.5, "f4")),
            {"channels": "pages", "levels": 4095},
            ["up to 7, in"],
        ),
        (tiff(flat(255)), {"page": 0, "levels": 4095}, ["up to 255.*: -s data.levels=255"]),
        (tiff(flat(16)), {"levels": 255}, ["up to 16.*: -s data.levels=16$"]),
        (tiff(flat(0.5, "f4")), {"levels": 4095}, ["nearly black: .* up to 0.5, .*levels=1"]),
        (tiff(flat(661)), {}, ["reach 661 of 65,535, .*data.levels=1023"]),
        (tiff(flat(661), tiffinfo={281: 4095}), {}, ["data.levels=4095"]),
        (tiff(flat(661), tiffinfo={281: 5}), {}, ["data.levels=1023"]),
        (tiff(flat(16_384)), {}, []),
        (png_of_colours(4000), {}, ["colours of 10 pictures reach 4,095"]),
        (png_of_colours(40_000), {}, []),
        (tiff(flat(99, "u1")), {}, []),
        (tiff(COLOURED), {}, []),
        (tiff(COLOURED.convert("RGBX")), {}, ["10 pictures with up to 4 in one page"]),
        (raw_tiff(NOISE[:4].astype("u1"), photometric=2), {}, ["channel of 10 .* transparency"]),
        (raw_tiff(SPOTS, photometric=2), {}, ["channel of 10 .* transparency"]),
        (PNG_OF_SPOTS, {}, ["channel of 10 .* transparency"]),
        (PNG_OF_DRAWING, {}, []),
        (tiff(COLOURED.convert("RGBA")), {}, []),
        (tiff(flat(9, "u1"), SMALL), {}, []),
        (tiff(flat(9, "u1"), SMALL, flat(8, "u1")), {}, ["10 pictures with up to 2; "]),
    ],
)
def test_what_is_not_read_is_noted_with_the_field_to_type(content, fields, expected, tmp_path):
    name = folder(tmp_path / "p", content, "png" if content[:1] == b"\x89" else "tif")
    for _ in range(2):  # decoded, then from the cache
        told = notes(DataSpec(name=name, **fields))
        assert len(told) == len(expected)
        for text, pattern in zip(told, expected, strict=True):
            assert re.search(pattern, text)


def test_pages_are_no_channels_if_files_have_other_numbers_of_them(tmp_path):
    name = folder(tmp_path / "p", STACK)
    next((tmp_path / "p").rglob("*.tif")).write_bytes(tiff(flat(1), flat(2)))
    told = [text for text in notes(DataSpec(name=name)) if "10 pictures with up to 3; " in text]
    assert [text[-11:] for text in told] == ["data.page=0"]


RAMP = np.linspace(0, 1, 1024, dtype="f4")[None].repeat(64, 0)
FINE = tiff(Image.fromarray(4 * np.arange(1024, dtype="u2").reshape(32, 32)))
NARROW = tiff(Image.fromarray(30_000 + np.arange(256, dtype="u2").reshape(16, 16)))
BRIGHT = tiff(Image.fromarray(64 * np.arange(1024, dtype="u2").reshape(32, 32)))


@pytest.mark.parametrize(
    ("content", "fields", "step"),
    [
        (FINE, {"levels": 4095}, "16"),
        (FINE, {"levels": [2000, 4096]}, "8.19"),
        (FINE, {"levels": [3100, 4095]}, None),
        (FINE, {}, None),
        (BRIGHT, {}, "256"),
        (NARROW, {}, "256"),
        (NARROW, {"levels": [20_000, 40_000]}, "78.1"),
        (NARROW, {"levels": [30_000, 30_255]}, None),
        (tiff(flat(1000)), {"levels": 4095}, None),
        (tiff(Image.fromarray(RAMP)), {"levels": 1}, "0.00391"),
    ],
)
def test_values_that_differ_within_a_level_are_noted_once(content, fields, step, tmp_path):
    spec = DataSpec(name=folder(tmp_path / "p", content), allow_leaks=True, **fields)
    told: list[str] = []
    load_data(spec, on_message=told.append)
    found = [
        re.search(r"10 pictures become 256 levels.* below (\S+) vanish", text) for text in told
    ]
    assert [match[1] for match in found if match] == ([] if step is None else [step])


@pytest.mark.parametrize("fields", [{}, {"levels": 65535}])
def test_dark_pictures_among_others_are_counted_and_one_is_named(fields, tmp_path):
    name = folder(tmp_path / "p", tiff(flat(60_000)))
    (tmp_path / "p" / "a" / "0.tif").write_bytes(tiff(flat(4095)))
    (tmp_path / "p" / "b" / "1.tif").write_bytes(tiff(flat(4000)))
    told: list[str] = []
    load_data(DataSpec(name=name, allow_leaks=True, **fields), on_message=told.append)
    (dark,) = [text for text in told if "lowest sixteenth" in text]
    assert "2 of 10 pictures" in dark
    assert "a/0.tif" in dark
    assert "data.levels" not in dark, "the others would be refused"


@pytest.mark.parametrize(
    ("fields", "in_chans"),
    [
        *[({}, 3), ({"page": 2}, 3), ({"channels": "grey"}, 1), ({"channels": [0, 2]}, 2)],
        *[({"channels": "pages"}, 3), ({"channels": [1] * 5}, 5)],
    ],
)
def test_the_number_of_channels_is_known_before_and_after_decoding(fields, in_chans, tmp_path):
    spec = DataSpec(name=folder(tmp_path / "p", STACK), allow_leaks=True, **fields)
    assert describe_data(spec).in_chans == load_data(spec).in_chans == in_chans


def test_pages_have_a_size_of_their_own_and_a_limited_number(tmp_path):
    content = tiff(flat(9, "u1"), flat(9, "u1", (8, 12)))
    spec = DataSpec(name=folder(tmp_path / "p", content), page=1)
    assert describe_data(spec).img_size == (8, 12)
    many = folder(tmp_path / "many", tiff(*[flat(9, "u1")] * 65))
    with pytest.raises(ConfigError, match="65 pages, at most 64; choose some"):
        describe_data(DataSpec(name=many, channels="pages"))


def test_arrays_of_16_bits_are_scaled_by_levels_and_have_no_pages(tmp_path):
    images = np.arange(20 * 64, dtype="u2").reshape(64, 20).T.reshape(20, 8, 8)
    np.savez(tmp_path / "a.npz", images=images, labels=[0, 1] * 10)
    spec = DataSpec(name=f"npz:{tmp_path}/a.npz", allow_leaks=True)
    assert [text for text in notes(spec) if "reach 1,279 of 65,535" in text]
    assert not notes(spec.replace(levels=(0, 1279)))
    data = load_data(spec.replace(levels=(0, 1279)))
    assert {*data.train.pixels.flatten().tolist(), *data.test.pixels.flatten().tolist()} == {
        *range(256)
    }
    with pytest.raises(InputError, match="above the white"):
        load_data(spec.replace(levels=(0, 1000)))
    dark = np.arange(20 * 64, dtype="u2").reshape(20, 8, 8) // 10  # in 8 bits, all of it is black
    np.savez(tmp_path / "dark.npz", images=dark, labels=[0, 1] * 10)
    known = [
        load_data(spec.replace(name=f"npz:{tmp_path}/dark.npz", levels=(0, white))).contents
        for white in (128, 130)
    ]
    assert len({*known[0].values()}) == 20, "each picture keeps a side of its own"
    assert known[0] == known[1], "also with other levels"
    for field, value in {"page": 1, "channels": "grey"}.items():
        with pytest.raises(ConfigError, match=f"data.{field}: for picture files"):
            load_data(spec.replace(**{field: value}))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"levels": [5, 5]}, "white, such as 4095"),
        ({"levels": "4095"}, "white, such as 4095"),
        ({"channels": []}, "grey, pages, or a list"),
        ({"channels": [0, -1]}, "grey, pages, or a list"),
        ({"channels": "rgb"}, "grey, pages, or a list"),
        ({"channels": "pages", "page": 1}, "both choose pages"),
        ({"name": "cifar10", "levels": 9}, "for your own pictures"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        as_read().replace(**fields)
