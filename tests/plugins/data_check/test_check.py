"""`vitcli data check` on tiny folders."""

import json
import shlex
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from tests.cli import commands
from tests.cli.commands import said
from tests.plugins.conftest import few_pictures as pictures
from tests.runner.data.conftest import shoot
from tests.runner.data.own_pictures import draw_pictures
from tests.runner.data.test_formats import write_csv
from vitcli.core.spec import DataSpec
from vitcli.plugins.data_check.check import check_folder
from vitcli.runner.data.load import load_data
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.experiment.config import parse_sets
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.split import read_sides

__all__ = ["pictures"]
vitcli = partial(commands.vitcli, "data")
check = partial(commands.document, "data", "check")
pytestmark = pytest.mark.usefixtures("here")
TINY = "model: {patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}\ntrain: {epochs: 1}\n"


@pytest.fixture
def flawed(here) -> Path:
    root, generator = here / "Käfer & Co", np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 2)):
        for name in ("alt", "neu"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                picture = Image.fromarray(pixels).resize((64, 48 + i), Image.Resampling.BICUBIC)
                picture.save(folder / f"{split}{10 * i}.png")
    train, test = root / "train", root / "test"
    first = train / "alt" / "train0.png"
    (test / "alt" / "same.png").write_bytes(first.read_bytes())
    (train / "neu" / "twin.png").write_bytes((train / "alt" / "train10.png").read_bytes())
    Image.open(train / "alt" / "train20.png").rotate(90, expand=True).save(test / "alt" / "t.jpg")
    Image.open(train / "neu" / "train30.png").rotate(180).save(train / "neu" / "mirror.webp")
    Image.open(train / "neu" / "train40.png").resize((40, 70)).save(test / "neu" / "flat.png")
    cut_short = (test / "alt" / "t.jpg").read_bytes()[:1000]
    (train / "alt" / "damaged.jpg").write_bytes(cut_short)
    return root


def test_check_names_each_problem_of_ones_own_pictures(flawed, monkeypatch):
    found = check(flawed, "--page", "page.html", code=6)
    assert found["num_problems"] == 5
    (bad,) = found["unreadable"]
    assert bad["problem"].startswith("train/alt/damaged.jpg")
    assert {(row["kind"], *sorted([row["picture"], row["other"]])) for row in found["pairs"]} == {
        ("copies", "test/alt/same.png", "train/alt/train0.png"),
        ("near", "test/alt/t.jpg", "train/alt/train20.png"),
        ("near", "test/neu/flat.png", "train/neu/train40.png"),
        ("twins", "train/alt/train10.png", "train/neu/twin.png"),
        ("alike", "train/neu/mirror.webp", "train/neu/train30.png"),
    }
    assert sum(row["pictures"] for row in found["sizes"]) == 21
    page = Path("page.html").read_text()
    assert page.count("<img") == 10
    assert "damaged.jpg" in page
    monkeypatch.setattr("vitcli.plugins.data_check.check.MOST_ALIKE", 0)
    short = check(flawed, code=6)
    assert short["num_alike"] == found["num_alike"] == 1
    assert "Not listed: 1 more pair of training pictures that look alike" in str(short["notes"])


def test_check_leaves_the_copies_out_and_names_the_training_without_them(flawed):
    (following,) = check(flawed, code=6)["next"]
    wanted = ["vitcli", "data", "check", str(flawed), "--leave-out", "copies.csv"]
    assert shlex.split(following) == wanted
    words = shlex.split(check(*wanted[3:-1], "ohne Kopien.csv", code=6)["next"][0])
    assert words[:4] == ["vitcli", "train", "finetune", "--data"]
    sets = [word for word, before in zip(words[1:], words, strict=False) if before == "-s"]
    found = {"data.name": words[4], "data.skip_bad": "--skip-bad" in words, **parse_sets(sets)}
    data = {"name": f"imagefolder:{flawed}", "skip_bad": True, "corrections": "ohne Kopien.csv"}
    assert found == {f"data.{field}": value for field, value in data.items()}
    read = load_data(DataSpec(**data, val_split=0.2), on_message=print)
    assert not read.leaks
    assert not {"test/alt/t.jpg", "test/neu/flat.png"} & {*read.test.names}
    twins = {"train/neu/twin.png", "train/alt/train10.png"}
    assert not twins & {*read.train.names, *read.val.names}
    assert (len(read.train), len(read.val), len(read.test)) == (10, 2, 4)
    chosen = Path("ohne Kopien.csv").read_text() + "train/neu/train30.png,\n"
    Path("ohne Kopien.csv").write_text(chosen)
    assert "1 picture more, such as 'train/neu/train30.png'" in said(
        2, *wanted[1:-1], "ohne Kopien.csv"
    )
    assert Path("ohne Kopien.csv").read_text() == chosen, "a person has chosen it"


def test_pairs_with_two_labels_are_found_on_all_sides_and_come_first(pictures):
    code, _, talk = vitcli("check", "pictures", "--leave-out", "copies.csv")
    assert (code, "copies.csv is not written: there is nothing" in talk) == (0, True)
    dark, bright = pictures / "train" / "dark", pictures / "train" / "bright"
    shutil.copy(pictures / "test" / "dark" / "1.png", pictures / "test" / "bright" / "twin.png")
    shutil.copy(dark / "1.png", pictures / "test" / "bright" / "across.png")
    shutil.copy(dark / "1.png", dark / "again.png")
    for number, other in ((2, dark), (3, dark), (4, bright)):
        Image.open(dark / f"{number}.png").rotate(90).save(other / f"turned{number}.png")
    found = check("pictures", code=6)
    pairs = [(row["kind"], {row["picture"], row["other"]}) for row in found["pairs"]]
    assert pairs[:3] == [
        ("twins", {"train/dark/again.png", "test/bright/across.png"}),
        ("twins", {"test/bright/across.png", "train/dark/1.png"}),
        ("twins", {"test/bright/twin.png", "test/dark/1.png"}),
    ]
    alike = [pair for kind, pair in pairs if kind == "alike"]
    assert alike[0] == {"train/bright/turned4.png", "train/dark/4.png"}
    assert len(alike) == 4
    told: list[str] = []
    load_data(DataSpec(name="imagefolder:pictures", allow_leaks=True), on_message=told.append)
    assert [text for text in told if "3 of 32 pictures found in another class" in text]


def test_a_validation_picture_that_is_a_training_picture_is_left_out(pictures, here):
    (pictures / "val" / "dark").mkdir(parents=True)
    for name in ("train/dark/1.png", "test/dark/2.png"):
        shutil.copy(pictures / name, pictures / "val" / "dark" / name.replace("/", "-"))
    assert check("pictures", code=6)["num_val"] == 2
    talk = vitcli("check", "pictures", "--leave-out", "copies.csv")[2]
    assert "copies.csv is not written: without the copies, a class or a split would have no" in talk
    assert "or move a folder of copies away" in talk
    Image.new("RGB", (8, 8), "white").save(pictures / "val" / "dark" / "other.png")
    assert vitcli("check", "pictures", "--leave-out", "copies.csv")[0] == 6
    assert Path("copies.csv").read_text().count("val/") == 2
    data = DataSpec(name="imagefolder:pictures", corrections="copies.csv", val_split=0.1)
    told: list[str] = []
    assert load_data(data, on_message=told.append).val.names == ("val/dark/other.png",)
    assert "note: no validation picture of 'bright'" in told


def test_a_class_without_test_pictures_is_a_problem_that_a_training_names(pictures):
    said(0, "data", "check", f"imagefolder:{pictures}")
    shutil.rmtree(pictures / "test" / "dark")
    found = check(pictures, "--page", "page.html", code=6)
    assert (found["num_problems"], found["untested"]) == (1, ["dark"])
    assert "dark</li>" in Path("page.html").read_text()
    for folder, is_told in ((pictures, False), (pictures / "train", True)):
        assert ("held out" in vitcli("check", folder)[1]) == is_told
    told: list[str] = []
    load_data(DataSpec(name=f"imagefolder:{pictures}"), on_message=told.append)
    assert [text for text in told if "no test picture of 'dark'" in text]


@pytest.mark.parametrize(("sizes", "is_told"), [((46, 1, 1, 1, 1), True), ((1,) * 10, False)])
def test_a_fifth_that_cannot_be_held_out_is_told_once(here, sizes, is_told):
    shoot(here / "camera", {"fox": sizes, "hare": (1,) * 10}, "noise")
    notes = json.loads(vitcli("check", "camera", "--json")[1])["notes"]
    told = [note for note in notes if "not a fifth of each class" in note]
    assert len(told) == is_told
    assert all("4 of 50 pictures of 'fox'" in note and "data.folds=5" in note for note in told)


def test_a_check_divides_the_pictures_as_the_next_command_does(here):
    """At the size of its model: copies of one size are divided otherwise at their own size."""
    shoot(here / "camera", {"fox": (5,) * 4, "hare": (1,) * 30}, "noise")
    found = json.loads(vitcli("check", "camera", "--json")[1])
    near = [pair for pair in found["pairs"] if pair["kind"] == "near"]
    assert near
    talk = commands.vitcli(*shlex.split(found["next"][0])[1:], "--dry-run")[2]
    assert f"{found['num_near']} of 10 test pictures look like a training picture" in talk
    assert f"{near[0]['picture']} = {near[0]['other']}\n" in talk


@pytest.mark.parametrize(
    ("kind", "dark", "bright", "typed", "fields"),
    [
        ("u4", 70_000, 90_000, [], ["data.levels=90000"]),
        ("f4", 0.5, 0.75, [], ["data.levels=1"]),
        ("f4", -2, 9, [], ["data.levels=[-2, 9]"]),
        ("u2", 900, 3000, ["-s", "data.levels=1000"], ["data.levels=4095"]),
        ("u2", 900, 3000, ["-s", "data.levels=[100,1000]"], ["data.levels=[100, 4095]"]),
    ],
)
def test_one_range_reads_all_pictures_and_is_named(pictures, kind, dark, bright, typed, fields):
    """With a few of a class that cannot be read without it, or with all of them."""
    for number, path in enumerate(sorted(pictures.rglob("*.png"))):
        noise = np.random.default_rng(number).random((8, 8))
        is_wide = "bright" in path.parts or number % 2
        top = bright if "bright" in path.parts else dark
        pixels = (noise * top).astype(kind) if is_wide else (255 * noise).astype("u1")
        if is_wide:
            pixels[0, :4] = top
        Image.fromarray(pixels.astype("i4") if kind == "u4" else pixels).save(path, "TIFF")
    for path in [*sorted((pictures / "train" / "bright").iterdir())][:2]:
        Image.new("L", (8, 8), 99).save(path)
    (following,) = check("pictures", *typed, code=6)["next"]
    words = shlex.split(following)[2:]
    assert [word for word in words if "levels" in word] == fields
    assert "--skip-bad" not in words
    assert json.loads(vitcli(*words, "--json")[1])["num_unreadable"] == 0
    for path in [*sorted((pictures / "train" / "bright").iterdir())][:2]:
        path.unlink()
    talk = said(4, "data", "check", "pictures", *typed)
    assert "no picture of class 'bright' can be read" in talk
    assert shlex.join(["-s", *fields]) in talk


def test_a_dark_picture_beside_others_is_told_and_is_no_problem(pictures):
    for path in pictures.rglob("*.png"):
        values = np.asarray(Image.open(path).convert("L")).astype("u2") * 256
        Image.fromarray(values // (1 + 63 * path.match("test/dark/1.png"))).save(path, "TIFF")
    code, out, talk = vitcli("check", "pictures", "--json")
    found = json.loads(out)
    assert (code, found["num_problems"], found["not_read"]) == (0, 0, [])
    assert "nearly black: 1 of" in talk


def test_pictures_that_are_left_out_are_no_problem(pictures):
    (pictures / "train" / "dark" / "0.png").write_bytes(b"")
    assert vitcli("check", "pictures", "--json")[0] == 6
    found = check("pictures", "--skip-bad")
    assert (found["num_problems"], found["num_unreadable"]) == (0, 1)
    assert "damaged" not in vitcli("check", "pictures", "--skip-bad")[1], "it may be a raw file"
    assert found["next"] == ["vitcli train finetune --data imagefolder:pictures --skip-bad"]


def test_the_next_command_for_pages_in_colour_is_not_refused(pictures):
    for path in pictures.rglob("*.png"):
        image = Image.open(path).convert("RGB")
        image.save(path, "TIFF", save_all=True, append_images=[image.rotate(90)])
    (following,) = check("pictures", code=6)["next"]
    assert following.endswith("-s data.page=0")
    assert vitcli(*shlex.split(following)[2:])[0] == 0


def test_pages_and_levels_that_are_not_read_are_problems_until_their_fields_are_typed(pictures):
    for path in pictures.rglob("*.png"):
        values = np.asarray(Image.open(path).convert("L")).astype("u2") * 16
        pages = [Image.fromarray(page) for page in (values * 0 + 7, values)]
        pages[0].save(path, "TIFF", save_all=True, append_images=pages[1:])
    found = check("pictures", code=6)
    problems = [row["problem"][:19] for row in found["not_read"]]
    assert problems == ["only the first page", "the 16-bit values o"]
    words = shlex.split(found["next"][0])[2:]
    assert words[-4:] == ["-s", "data.channels=pages", "-s", "data.levels=4095"], "all at once"
    (following,) = json.loads(vitcli(*words[:-1], "data.levels=65535", "--json")[1])["next"]
    assert following.endswith("data.levels=4095"), "black pictures are no copies to train with"
    found = commands.document("data", *words, "--page", "page.html")
    assert (found["num_problems"], found["not_read"]) == (0, [])
    training = "vitcli train quickstart --data imagefolder:pictures"
    assert found["next"] == [f"{training} -s data.channels=pages -s data.levels=4095"]
    for change, told in (("fit=pad", "data check takes data.page"), ("levels=x", "such as 4095")):
        assert told in said(2, "data", "check", "pictures", "-s", f"data.{change}")


@pytest.mark.parametrize(
    ("option", "file", "content"),
    [
        ("--leave-out", "labels.csv", None),
        ("--page", "notes.html", "<title>mine</title>"),
    ],
)
def test_no_file_is_replaced_that_the_command_did_not_write(
    option, file, content, pictures, monkeypatch
):
    monkeypatch.chdir(pictures)
    names = [*map(str, sorted(Path().rglob("*.png")))]
    Image.open(names[0]).save("train/bright/0.png")
    rows = [f"{name},{name.split('/')[1]}" for name in names]
    Path("labels.csv").write_text("\n".join(["path,label", *rows]))
    if content:
        Path(file).write_text(content)
    before = Path(file).read_bytes()
    assert file in said(2, "data", "check", "csv:labels.csv", option, file)
    assert Path(file).read_bytes() == before
    if content:
        Path(file).unlink()
        for _ in range(2):  # what it wrote may be replaced
            assert vitcli("check", "csv:labels.csv", option, file)[0] in (0, 6)


def test_a_divided_group_is_a_problem_that_only_a_person_can_solve(tmp_path):
    pictures = draw_pictures()
    group = pictures[0].group
    torn = [each._replace(group=group) if each.split == "test" else each for each in pictures]
    found = check_folder(list_pictures(write_csv(tmp_path / "own", torn)), print)
    assert (found.num_problems, len(found.leaks)) == (6, 6)
    assert not found.left_out, "no test picture would be left"


def test_a_class_keeps_its_test_pictures_if_all_of_them_look_alike(pictures):
    train, test = pictures / "train", pictures / "test"
    for number, path in enumerate(sorted((test / "bright").iterdir()), start=1):
        Image.open(train / "bright" / f"{number}.png").rotate(90).save(path)
    Image.open(train / "dark" / "2.png").rotate(90).save(test / "dark" / "turned.png")
    assert check_folder(list_pictures("imagefolder:pictures"), print).left_out == [
        "test/dark/turned.png"
    ]


@pytest.fixture
def trained(pictures, here) -> dict[str, str]:
    """A run called old, trained on half of the pictures for training; name -> side in it."""
    for path in sorted((pictures / "train").glob("*/*"))[::2]:
        place = here / "old" / path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)
    Path("tiny.yaml").write_text(TINY)
    words = ("--data", "imagefolder:old", "--name", "old", "-s", "data.val_split=0.2")
    said(0, "train", "tiny.yaml", *words)
    sides = read_sides(RunDir(Path("runs/old"))) or {}
    data = load_data(DataSpec(name="imagefolder:old"))
    return {name: sides[content] for name, content in data.contents.items()}


def counts_of(found: dict) -> dict[str, dict[str, int]]:
    return {row.pop("now"): row for row in found["against"]}


def test_against_a_run_the_pictures_are_in_the_splits_of_a_training_from_it(pictures, trained):
    (pictures / "test").rename("away")
    noise = np.random.default_rng(5).integers(0, 256, (9, 30, 3), dtype=np.uint8)
    Image.fromarray(noise).save(pictures / "train" / "dark" / "wide.png")
    code, out, talk = vitcli("check", "pictures", "--against", "old", "--json")
    found = json.loads(out)
    assert (code, found["num_seen"]) == (0, 0), talk
    known = {row["picture"].removeprefix("train/"): row for row in found["pictures"]}
    assert {name: known[name]["then"] for name in trained} == trained
    tested = {name for name, row in known.items() if row["now"] == "test"}
    assert {name for name, side in trained.items() if side == "test"} < tested
    assert not tested & {name for name, side in trained.items() if side != "test"}
    (following,) = found["next"]
    wanted = ["train", "finetune", "--data", "imagefolder:pictures", "--init", "old"]
    assert shlex.split(following)[1:] == wanted
    words = ("train", "tiny.yaml", *wanted[2:], "--name", "new", "-s", "data.val_split=0.2")
    assert "learned from" not in said(0, *words)
    counts = counts_of(found)
    new = read_sides(RunDir(Path("runs/new")))
    assert counts["test"]["test"] + counts["test"]["new"] == [*new.values()].count("test")
    assert "not here" not in talk
    (pictures / "train" / sorted(trained)[0]).unlink()
    talk = vitcli("check", "pictures", "--against", "old")[2]
    assert "1 picture of the earlier run is not here" in talk


def test_against_a_run_the_pictures_are_read_at_its_size_with_its_bars(here):
    Path("tiny.yaml").write_text(TINY)
    for place in ("old", "new"):
        shoot(here / place, {"fox": (1, 2, 3, 4) * 3, "hare": (1, 2, 3) * 4}, "noise")
        for path in sorted((here / place).rglob("*.png")):
            scene = ImageChops.offset(Image.open(path), 9 if place == "new" else 0)
            scene.resize((40, 16)).save(path)
    words = ("--data", "imagefolder:old", "--name", "old", "--fit", "pad", "-s", "data.resize=16")
    said(0, "train", "tiny.yaml", *words)
    for path in sorted((here / "old").rglob("*.png")):
        path.rename(here / "new" / path.parent.name / f"old-{path.name}")
    found = json.loads(vitcli("check", "new", "--against", "old", "--json")[1])
    assert (found["img_size"], found["kept_area"]) == ([16, 16], 1)
    talk = commands.vitcli(*shlex.split(found["next"][0])[1:], "--dry-run")[2]
    assert f"{found['num_test']} of its 108 pictures are held out" in talk


def test_test_pictures_that_the_run_was_trained_on_are_a_problem_and_are_left_out(
    pictures, trained
):
    moved = sorted(name for name, side in trained.items() if side == "train")[:3]
    for name in moved:
        (pictures / "train" / name).rename(pictures / "test" / name.replace("/", "/moved-"))
    assert vitcli("check", "pictures")[0] == 0
    found = check("pictures", "--against", "old", "--page", "page.html", code=6)
    assert (found["num_seen"], found["num_problems"]) == (3, 3)
    assert counts_of(found)["test"]["train"] == 3
    seen = ("test", "train")
    names = {row["picture"] for row in found["pictures"] if (row["now"], row["then"]) == seen}
    assert names == {"test/" + name.replace("/", "/moved-") for name in moved}
    assert all(name in Path("page.html").read_text() for name in names)
    (following,) = found["next"]
    found = commands.document(*shlex.split(following)[1:], code=6)
    words = shlex.split(found["next"][0])
    assert {*words} >= {"--init", "old", "data.corrections=copies.csv"}
    talk = said(0, "train", "tiny.yaml", *words[3:], "--name", "new")
    assert "learned from" not in talk
    assert "3 pictures left out" in talk


def test_a_check_reads_the_corrections_and_groups_that_are_typed_or_of_the_run(flawed):
    typed = ("-s", "data.corrections=c.csv", "-s", "data.group=([a-z0-9]+)[.]")
    made = "neu/twin.png,alt\ntrain/neu/mirror.webp,\n"
    Path("c.csv").write_text(f"file,label\ntrain/{made}")
    (flawed / "train" / "alt" / "damaged.jpg").unlink()
    found = check(flawed, *typed, "--leave-out", "all.csv", code=6)
    assert found["notes"][-1] == "13 groups; the largest is 'train0' with 2 pictures"
    assert not [row for row in found["pairs"] if row["kind"] == "twins"]
    assert {row["class"]: row["train"] for row in found["classes"]} == {"alt": 7, "neu": 6}
    assert made in Path("all.csv").read_text()
    assert found["next"][0].count("data.corrections=") == 1
    assert vitcli("check", str(flawed), *typed, "--leave-out", "all.csv")[0] == 6, "again"
    Path("copies.csv").write_text("file,label\ntrain/alt/train0.png,neu\n")
    (following,) = check(flawed, code=6)["next"]
    assert vitcli(*shlex.split(following)[2:])[0] == 6, "not the file of a person"
    Path("tiny.yaml").write_text(TINY)
    words = ("--data", f"imagefolder:{flawed}", "--name", "run", "--allow-leaks", *typed)
    said(0, "train", "tiny.yaml", *words)
    again = check(flawed, "--against", "run", code=6)
    assert [again[key] for key in ("pairs", "notes")] == [found[key] for key in ("pairs", "notes")]
    words = shlex.split(again["next"][0])
    assert parse_sets(words[words.index("-s") + 1 :: 2][:2]) == parse_sets([typed[3], typed[1]])


def test_a_run_that_does_not_say_its_pictures_is_refused(pictures, trained):
    Path("runs/old/split.json").unlink()
    silent = "does not say which pictures"
    for run, part in {
        "cifar10-pocket": silent,
        "old": silent,
        "nowhere": "no run is called",
    }.items():
        assert part in said(4, "data", "check", "pictures", "--against", run)


@pytest.mark.parametrize("has_copies", [True, False])
def test_the_folder_of_a_phone_and_a_network_storage_is_checked_without_a_word_too_many(
    pictures, has_copies
):
    """The thumbnails of a Synology, side files, and a class in folders of years."""
    first = sorted((pictures / "train" / "dark").glob("*"))[0]
    for name in ("@eaDir/dark/SYNOPHOTO_THUMB_M.png", "train/@eaDir/t.png", "train/dark/a.AAE"):
        (pictures / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(first, pictures / name)
    if has_copies:
        (pictures / "train" / "dark" / "2024").mkdir()
        shutil.copy(first, pictures / "test" / "dark" / "copy.png")
        first.rename(pictures / "train" / "dark" / "2024" / first.name)
    code, out, talk = vitcli("check", "pictures", "--leave-out", "copies.csv", "--json")
    found = json.loads(out)
    assert (code, found["num_unreadable"], found["num_copies"]) == (6 * has_copies, 0, has_copies)
    assert [row["class"] for row in found["classes"]] == ["bright", "dark"]
    assert "1 .aae" in talk
    assert "2 @eaDir" in talk
    words = shlex.split(found["next"][0])
    assert words[3:5] == ["--data", "imagefolder:pictures"]
    said(0, *words[1:], "--dry-run")
