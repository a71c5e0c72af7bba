"""The pictures of `vitcli attn-map`: files of any shape, folders, and files without a picture."""

import json
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.map_pictures import save, vitcli


@pytest.mark.parametrize(
    ("name", "size", "mode"),
    [
        ("square.png", (8, 8), "RGB"),
        ("wide.jpg", (300, 90), "RGB"),
        ("tall.webp", (40, 200), "RGB"),
        ("grey.png", (33, 50), "L"),
        ("clear.png", (64, 48), "RGBA"),
    ],
)
def test_a_picture_of_any_shape_is_named_and_drawn(mapped_run, workshop, name, size, mode):
    code, out, talk = vitcli(save(name, size, mode), "--run", mapped_run)
    assert code == 0, talk
    stem = name.partition(".")[0]
    assert out.rstrip().endswith(f" %  {stem}-cls.png")
    assert out.startswith((f"{name}: bright", f"{name}: dark"))
    assert talk == f"run {mapped_run.name} (imagefolder:{workshop / 'pictures'})\n"
    with Image.open(f"{stem}-cls.png") as figure:
        assert min(figure.size) > 200


def test_a_folder_is_mapped_twice_and_its_figures_are_left_out(mapped_run):
    save("a.png", (9, 9))
    save("b.jpg", (9, 9))
    assert vitcli(".", "--run", mapped_run)[0] == 0
    Path("a-cls.png").rename("renamed.png")
    code, out, talk = vitcli(".", "--run", mapped_run)
    assert (code, len(out.splitlines())) == (0, 2)
    assert ".: skipped 2 figures of attn-map\n" in talk
    assert vitcli("renamed.png", "--run", mapped_run)[0] == 0, (
        "a figure that is named itself is a picture like any other"
    )
    for file in ("a.png", "b.jpg"):
        Path(file).unlink()
    code, _, talk = vitcli(".", "--run", mapped_run)
    assert code == 4
    assert "no picture in this folder, only 4 figures of attn-map" in talk


def test_a_turned_photo_is_turned_back(mapped_run):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = save("turned.jpg", (80, 20), exif=exif)
    assert vitcli(path, "--run", mapped_run, "--format", "json", "-o", "a.json")[0] == 0
    box = json.loads(Path("a.json").read_text())["box"]
    assert box == [30, 0, 20, 20], "the middle of a picture 20 wide and 80 high"


def test_a_picture_is_never_replaced_by_its_map(mapped_run):
    path = save("x.png", (8, 8))
    before = Path(path).read_bytes()
    Path("link.png").symlink_to(path)
    for name in ("x.png", "./x.png", "link.png"):
        code, _, talk = vitcli(path, "--run", mapped_run, "-o", name)
        assert (code, "would overwrite the picture" in talk) == (2, True), talk
    assert Path(path).read_bytes() == before


def test_dash_is_standard_input_whatever_lies_here(mapped_run):
    Path("-").mkdir()
    code, _, talk = vitcli("-", "--run", mapped_run)
    assert code == 4
    assert "the file is empty" in talk
    assert vitcli(save("x.png", (8, 8)), "--run", mapped_run, "-o", "-")[0] == 2


def test_a_folder_is_all_its_pictures(mapped_run):
    Path("many").mkdir()
    for name in ("b.png", "a.jpg"):
        save(f"many/{name}", (16, 16))
    Path("many/notes.txt").write_text("no picture")
    code, out, _ = vitcli("many", "--run", mapped_run, "-o", "out", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["image"] for row in rows] == ["many/a.jpg", "many/b.png"]
    assert all(Path(row["file"]).is_file() for row in rows)
    assert {row["class"] for row in rows} <= {"dark", "bright"}


def test_pictures_of_one_name_do_not_overwrite_each_other(mapped_run):
    for folder in ("a", "b.c"):
        Path(folder).mkdir()
        save(f"{folder}/x.png", (10, 10))
    save("a/x.jpg", (10, 10))
    assert vitcli("a", "b.c", "--run", mapped_run, "-o", "b.c")[0] == 0
    found = sorted(path.name for path in Path("b.c").glob("*-cls.png"))
    assert found == ["x-2-cls.png", "x-3-cls.png", "x-cls.png"]


def test_what_is_no_picture_is_said_and_the_rest_is_done(mapped_run):
    Path("note.png").write_text("words")
    good = save("good.png", (10, 10))
    code, out, talk = vitcli("note.png", good, "missing.png", "--run", mapped_run)
    assert code == 3
    assert "good-cls.png" in out
    assert "error: note.png: text, not a picture" in talk
    assert "error: missing.png: cannot be opened" in talk
    assert talk.rstrip().endswith("error: 2 of 3 images could not be read")
    assert vitcli("note.png", "--run", mapped_run)[0] == 4


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    header = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + header + b"\0\0\0\0IDAT" + b"\0" * 4


def half_a_jpeg() -> bytes:
    content = Path(save("whole.jpg", (64, 64))).read_bytes()
    return content[: len(content) // 2]


BAD = {
    "cut.jpg": (half_a_jpeg, "cut.jpg: the picture is damaged or cut short; get a fresh copy"),
    "huge.png": (
        lambda: png_header(20_000, 20_000),
        "huge.png: over 100 megapixels; save a smaller copy",
    ),
    "long.png": (
        lambda: png_header(30_000, 30),
        "long.png: 30000x30 has an aspect ratio over 20:1",
    ),
    "photo.heic": (
        lambda: b"\0\0\0\x18ftypheic" + b"\0" * 99,
        "photo.heic: the picture is damaged or cut short; get a fresh copy",
    ),
    "empty.png": (lambda: b"", "empty.png: the file is empty"),
    "tool.png": (lambda: b"\x7fELF" + bytes(99), "tool.png: a file, not a picture"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_one_line_and_the_others_are_written(mapped_run, name):
    make, told = BAD[name]
    Path(name).write_bytes(make())
    code, out, talk = vitcli(name, "--run", mapped_run, "-o", "out")
    assert (code, out) == (4, "")
    _, first = talk.splitlines()
    assert first.startswith(f"error: {told}")
    assert not Path("out").exists()
    code, out, talk = vitcli(
        save("a.png", (9, 9)), name, save("b.jpg", (9, 9)), "--run", mapped_run
    )
    assert code == 3
    assert len(out.splitlines()) == 2
    assert talk.count("error: ") == 2
    for written in ("a-cls.png", "b-cls.png"):
        with Image.open(written) as figure:
            figure.load()


def test_a_folder_as_one_of_several_that_holds_no_picture_stops_at_once(mapped_run):
    Path("empty").mkdir()
    code, out, talk = vitcli(save("a.png", (9, 9)), "empty", "--run", mapped_run)
    assert (code, out) == (4, "")
    assert "error: empty: no picture in this folder" in talk
    assert not Path("a-cls.png").exists()


def test_suffixes_are_those_of_pictures_that_can_be_read(mapped_run):
    for suffix in (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".heic", ".heif"):
        assert vitcli(save(f"x{suffix}", (9, 9)), "--run", mapped_run, "-o", "out")[0] == 0
