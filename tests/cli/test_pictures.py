"""The pictures of `vitcli attn-map`: files, folders, and what is none."""

import os
from pathlib import Path

from tests.cli.commands import document, said, save_picture, vitcli


def test_a_folder_is_mapped_twice_and_its_figures_are_left_out(mapped_run):
    Path("many").mkdir()
    for name in ("many/b.png", "many/a.jpg"):
        save_picture(name, (9, 9))
    Path("many/notes.txt").write_text("no picture")
    os.chdir("many")
    rows = document("attn-map", mapped_run, ".")["pictures"]
    assert [row["image"] for row in rows] == ["a.jpg", "b.png"]
    assert all(Path(row["file"]).is_file() for row in rows)
    Path("a-cls.png").rename("renamed.png")
    assert len(document("attn-map", mapped_run, ".")["pictures"]) == 2
    said(0, "attn-map", mapped_run, "renamed.png")  # a figure that is named itself
    for file in ("a.jpg", "b.png"):
        Path(file).unlink()
    assert "only 4 figures of attn-map" in said(4, "attn-map", mapped_run, ".")


def test_pictures_of_one_name_do_not_overwrite_each_other(mapped_run):
    for folder in ("a", "b.c"):
        Path(folder).mkdir()
        save_picture(f"{folder}/x.png", (10, 10))
    save_picture("a/x.jpg", (10, 10))
    said(0, "attn-map", mapped_run, "a", "b.c", "--format", "json", "-o", "b.c")
    found = sorted(path.name for path in Path("b.c").glob("*-cls.json"))
    assert found == ["x-2-cls.json", "x-3-cls.json", "x-cls.json"]


def test_a_map_takes_no_name_of_a_picture(mapped_run):
    Path("many").mkdir()
    for name in ("many/a.png", "many/a-cls.png"):
        save_picture(name, (9, 9))
    mine = Path("many/a-cls.png").read_bytes()
    for words in (["many"], ["many"], ["many/a.png"]):
        said(0, "attn-map", mapped_run, *words, "-o", "many")
    assert Path("many/a-cls.png").read_bytes() == mine
    made = {path.name for path in Path("many").iterdir()} - {"a.png", "a-cls.png"}
    assert made == {"a-2-cls.png", "a-cls-cls.png"}
    for name in ("a.png", "a-cls.png", "a-2-cls.png"):
        said(2, "attn-map", mapped_run, f"many/{name}", "-o", f"many/{name}")


def test_a_bad_picture_is_one_line_and_the_others_are_written(mapped_run):
    Path("bad.png").write_text("words")
    code, out, talk = vitcli("attn-map", mapped_run, "bad.png", "-o", "out")
    assert (code, out, Path("out").exists()) == (4, "", False)
    assert talk.splitlines()[1].startswith("error: bad.png: ")
    Path("-").mkdir()  # which is standard input, whatever lies here
    said(4, "attn-map", mapped_run, "-")
    files = (save_picture("a.png", (9, 9)), "bad.png", "missing.png")
    code, out, talk = vitcli("attn-map", mapped_run, *files)
    assert (code, out.split()[-1], Path("a-cls.png").is_file()) == (3, "a-cls.png", True)
    Path("empty").mkdir()
    Path("a-cls.png").unlink()
    assert vitcli("attn-map", mapped_run, "a.png", "empty")[:2] == (4, "")
    assert not Path("a-cls.png").exists(), "a folder without pictures stops at once"
