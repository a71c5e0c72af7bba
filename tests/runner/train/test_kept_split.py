"""New pictures come, and a training starts from the run of the old ones."""

import json
import shutil
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.commands import said, vitcli
from tests.plugin_rows import of
from tests.runner.data.conftest import add
from vitcli.core.spec import DataSpec
from vitcli.runner.data import cache, folds, load, picture_reader
from vitcli.runner.data.load import load_data
from vitcli.runner.evaluate.trained_run import load_trained_run
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.split import read_sides

VAL = "data.val_split=0.2"


TINY = """
model: {patch_size: 4, embed_dim: 16, depth: 1, num_heads: 2}
train: {epochs: 1, batch_size: 8}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("kept") / "place"


@pytest.fixture
def photos(here, place, monkeypatch) -> Path:
    """Twenty pictures of two classes each, and a run that was trained on them, always there."""
    monkeypatch.setattr(load, "NUM_GENERATED", (40, 20))
    first = place.with_name("first")
    shutil.rmtree(place, ignore_errors=True)
    if first.exists():
        shutil.copytree(first, place)
        monkeypatch.chdir(place)
    else:
        for seed, name in enumerate(("cat", "dog")):
            add(place / "photos" / name, 20, np.random.default_rng(seed))
        monkeypatch.chdir(place)
        Path("tiny.yaml").write_text(TINY)
        train("photos", "old")
        shutil.copytree(place, first)
    return place / "photos"


def train(folder: str, name: str, *words: str, code: int = 0) -> str:
    data = ("--data", f"imagefolder:{folder}", "-s", VAL)
    return said(code, "train", "tiny.yaml", *data, "--name", name, *words)


def sides(name: str) -> dict[str, str]:
    return dict(read_sides(RunDir(Path("runs") / name)) or {})


def grow(photos: Path) -> Path:
    """A week later: half of the old pictures have other names, and there are new ones."""
    new = Path(shutil.copytree(photos, "new"))
    for i, path in enumerate(sorted(new.rglob("*.png"))):
        if i % 2:
            (path.parent / "2027").mkdir(exist_ok=True)
            path.rename(path.parent / "2027" / f"photo {i}.png")
    for seed, name in enumerate(("cat", "ant", "dog")):
        add(new / name / "new", 15, np.random.default_rng(seed + 9))
    shutil.copy(new / "cat" / "new" / "20-0.png", new / "cat" / "twice.png")
    return new


@pytest.mark.parametrize(
    "between",
    [
        (),
        ("--data", "shapes"),
        *of("mae", ("--data", "imagefolder:photos", "-s", "task.name=mae")),
    ],
)
def test_old_pictures_stay_in_their_split_and_new_ones_are_divided(photos, between):
    """Also after another training, of other images or without labels."""
    old, first = sides("old"), "between" if between else "old"
    assert Counter(old.values()) == {"train": 26, "test": 8, "val": 6}
    if between:
        said(0, "train", "tiny.yaml", *between, "--init", "old", "--name", first)
    grow(photos)
    talk = train("new", "new", "--init", first)
    assert "40 of 86 pictures stay" in talk
    assert "46 new ones are divided" in talk
    assert "learned from" not in talk
    new = sides("new")
    assert {content: new[content] for content in old} == old
    added = Counter(side for content, side in new.items() if content not in old)
    assert added["train"] > added["test"] >= 6
    assert added["val"] >= 5
    tested = sum(side == "test" for side in new.values())
    (text,) = [
        note
        for note in json.loads(vitcli("runs", "diff", "old", "new", "--json")[1])["notes"]
        if "scores" in note
    ]
    counted = f"8 pictures of 2 classes and {tested} pictures of 3 classes, of which 8 are"
    assert f"different test pictures (copies count once): {counted}" in text
    without = train("new", "alone")
    assert "stay" not in without
    assert {content: sides("alone")[content] for content in old} != old, "else it proves nothing"


def test_groups_and_corrections_of_the_run_stay_unless_others_are_typed(photos):
    made = "file,label\ncat/20-0.png,dog\ncat/20-1.png,\ncat/20-2.png,cat\n"
    Path("wrong.csv").write_text(made)
    group = ("-s", r"data.group=20-(\d+)\.")
    train("photos", "better", *group, "-s", "data.corrections=wrong.csv")
    assert " as independent; they are of " in vitcli("eval", "better")[1]
    talk = train("photos", "next", "--init", "better")
    assert "1 label corrected, 1 picture left out (wrong.csv)" in talk
    assert "39 of 39 pictures stay in the split of an earlier run; 0 new ones" in talk
    data = RunDir(Path("runs/next")).spec().data
    assert (data.group, data.corrections) == (r"20-(\d+)\.", "wrong.csv")
    unset = ("-s", "data.group=null", "-s", "data.corrections=null")
    talk = train("photos", "typed", "--init", "better", *unset)
    assert "corrected" not in talk
    assert "data.group" not in talk
    shutil.copytree(photos, "moved")
    talk = train("moved", "new", "--init", "better", "--dry-run")
    assert "to use them: -s data.corrections=wrong.csv" in talk
    assert "data.group is that of better: -s 'data.group=" in talk
    same, other = (vitcli("runs", "diff", "better", name)[1] for name in ("next", "typed"))
    assert ("labels of test pictures" in same, "labels of test pictures" in other) == (False, True)


def test_one_new_group_is_learned(photos):
    """It has all new pictures of each class, but no class loses its old ones."""
    group = ("-s", r"data.group=20-\d+|21")
    train("photos", "grouped", *group)
    for seed, name in enumerate(("cat", "dog")):
        add(photos / name, 5, np.random.default_rng(seed + 9), (21, 20))
    assert "40 of 50 pictures stay" in train("photos", "next", "--init", "grouped")
    old, new = (Counter(sides(name).values()) for name in ("grouped", "next"))
    assert new - old == {"train": 10}


def test_pictures_of_the_run_that_are_not_here_are_counted(photos):
    for path in sorted(Path(shutil.copytree(photos, "new")).rglob("*.png"))[:3]:
        path.unlink()
    talk = train("new", "new", "--init", "old")
    assert "3 pictures of the earlier run are not here" in talk
    assert "not here" not in train("photos", "same", "--init", "old")


def test_a_run_that_kept_a_split_continues_and_is_measured_without_the_old_run(photos):
    grow(photos)
    train("new", "whole", "--init", "old", "--epochs", "2")
    train("new", "parts", "--init", "old", "--epochs", "2", "--stop-after", "1")
    shutil.rmtree("runs/old")
    said(0, "train", "--resume", "parts")
    whole, parts = (
        json.loads(Path(f"runs/{n}/result.json").read_text()) for n in ("whole", "parts")
    )
    same = {name for name in whole if "second" not in name and name != "sha256"}
    assert {name: whole[name] for name in same} == {name: parts[name] for name in same}
    assert sides("whole") == sides("parts")
    for split in ("test", "val"):
        code, out, talk = vitcli("eval", "parts", "--split", split, "--json")
        assert (code, json.loads(out)[f"{split}_accuracy"]) == (0, whole[f"{split}_accuracy"])
        assert "other images" not in talk
    said(0, "runs", "verify", "parts")
    said(0, "runs", "rm", "parts", "--yes")
    assert not Path("runs/parts").exists()


def as_if_validation_pictures_could_look_alike(photos: Path, earlier: pytest.MonkeyPatch) -> None:
    for path in sorted(photos.rglob("*.png"))[::2]:
        Image.open(path).rotate(90).save(path.with_name(f"turned-{path.name}"))
    earlier.setattr(folds, "alike_together", lambda train, val, *others: val)


def as_if_the_largest_group_were_held_out(photos: Path, earlier: pytest.MonkeyPatch) -> None:
    path = min(photos.rglob("*.png"))
    scene, generator = np.array(Image.open(path)) // 2, np.random.default_rng(0)
    for shot in range(15):
        noise = generator.integers(0, 20, scene.shape, np.uint8)
        Image.fromarray(scene + noise).save(path.with_name(f"shot-{shot}.png"))

    def first_part(images, class_names, count, contents, *, may_be_short):
        groups, digests, unlinked, _ = folds.linked_images(images, class_names, count, {})
        parts = folds.divide(groups, digests, images.labels.tolist(), count, 0)
        return parts == 0, unlinked

    earlier.setattr(picture_reader, "hold_out_fold", first_part)
    earlier.setattr(cache, "FORMAT", 9)


@pytest.mark.parametrize(
    "divide_as_before",
    [as_if_validation_pictures_could_look_alike, as_if_the_largest_group_were_held_out],
)
def test_a_run_of_a_version_that_divided_pictures_otherwise_keeps_its_pictures(
    photos, monkeypatch, divide_as_before
):
    with monkeypatch.context() as earlier:
        divide_as_before(photos, earlier)
        train("photos", "whole", "--epochs", "2")
        train("photos", "parts", "--epochs", "2", "--stop-after", "1")
    train("photos", "today")
    assert sides("today") != sides("whole"), "else it proves nothing"
    said(0, "train", "--resume", "parts")
    whole = json.loads(Path("runs/whole/result.json").read_text())
    for split in ("val", "test"):
        code, out, talk = vitcli("eval", "parts", "--split", split, "--json")
        assert (code, "other images" in talk) == (0, False)
        assert json.loads(out)[f"{split}_accuracy"] == whole[f"{split}_accuracy"]
    assert sides("parts") == sides("whole")
    train("photos", "after", "--init", "whole")
    assert sides("after") == sides("whole")
    assert "different test pictures" not in vitcli("runs", "diff", "whole", "after")[1]


@pytest.mark.parametrize(
    ("words", "size"), [((), (20, 20)), (("-s", "data.folds=4"), (20, 20)), ((), (24, 30))]
)
def test_a_run_is_measured_on_the_new_pictures_that_it_has_not_learned(photos, words, size):
    run = "folds" if words else "old"
    if words:
        train("photos", run, *words)
    old = sides(run)
    for seed, name in enumerate(("cat", "dog")):
        add(photos / name / "new", 15, np.random.default_rng(seed + 9), size)
    contents = dict(names_of(photos))
    _, out, talk = vitcli("eval", run)
    assert "40 of 70 pictures stay" in talk
    assert ("old: read at 20x20, the size of its model" in talk) == (size != (20, 20))
    assert "was trained on other images" in out
    data = load_trained_run(run).data
    tested = {contents[name] for name in data.test.names}
    assert {content for content, side in old.items() if side == "test"} < tested
    assert not tested & {content for content, side in old.items() if side != "test"}
    assert {*data.val.names} >= {n for n, c in contents.items() if old.get(c) == "val"}


def test_a_new_picture_that_looks_like_an_old_one_is_on_its_side(photos):
    named = dict(names_of(photos))
    new = Path(shutil.copytree(photos, "new"))
    wanted = {}
    for side in ("train", "test"):
        first = next(name for name, content in named.items() if sides("old")[content] == side)
        turned = Path("new") / Path(first).parent / f"turned-{side}.png"
        Image.open(new / first).resize((40, 40), Image.Resampling.BICUBIC).rotate(90).save(turned)
        wanted[str(turned.relative_to("new"))] = side
    talk = train("new", "new", "--init", "old", "-s", "data.resize=20")
    assert "look like a training picture" not in talk
    found = {name: sides("new")[content] for name, content in names_of(new) if name in wanted}
    assert found == wanted


def names_of(folder: Path) -> list[tuple[str, str]]:
    files = sorted(folder.rglob("*.png"))
    return [(str(f.relative_to(folder)), sha256(f.read_bytes()).hexdigest()[:16]) for f in files]


def to_splits(photos: Path) -> None:
    """Divide the pictures into folders: of each class, the first fifteen are for training."""
    for name in ("cat", "dog"):
        for i, path in enumerate(sorted((photos / name).iterdir())):
            place = Path("split") / ("train" if i < 15 else "test") / name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)


NOT_KNOWN = ("no record", "no run", "no training")
CASES = ("folds", "test folder", "trained before", "same folder", *NOT_KNOWN[:2])
IMPORTED = pytest.param(NOT_KNOWN[2], marks=pytest.mark.plugin("exports", "weights"))


@pytest.mark.parametrize("case", [*CASES, IMPORTED])
def test_a_training_says_what_its_weights_learned_before(photos, case):
    old, first, words = sides("old"), "old", []
    new = photos if case == "same folder" else grow(photos)
    if case == "folds":
        words = ["-s", "data.folds=4", "-s", "data.val_split=0"]
    elif case in ("no record", "same folder"):
        Path("runs/old/split.json").unlink()
    elif case == "no training":
        first, new = "imported", photos
        said(0, "export", "old", "--format", "safetensors", "-o", "old.safetensors")
        where = f"data.name=imagefolder:{photos}"
        said(0, "import", "old.safetensors", "tiny.yaml", "--name", first, "-s", where)
    elif case == "no run":
        first = "between"
        words = ["--data", "shapes", "--init", "old", "--name", first]
        said(0, "train", "tiny.yaml", *words)
        shutil.rmtree("runs/old")
        words = []
    else:
        to_splits(photos)
        new = Path("split")
    if case == "trained before":  # the run between has not seen the pictures of the test folder
        train("split/train", first := "between", "--init", "old")
    talk = train(str(new), "new", "--init", first, *words)
    expected = "does not say which pictures it learned from" if case in NOT_KNOWN else ""
    if case in ("folds", "test folder", "trained before"):
        spec = DataSpec(name=f"imagefolder:{new}", folds=4 if case == "folds" else None)
        data = load_data(spec, seed=0)
        seen = sum(old.get(data.contents[name]) == "train" for name in data.test.names)
        assert seen
        expected = f"{first} learned from {seen} of the {len(data.test)} test images"
    assert [line for line in talk.splitlines() if "test accuracy will be too high" in line] == [
        line for line in talk.splitlines() if expected and expected in line
    ]
    assert expected in talk
    assert "validation accuracy" not in talk


@pytest.mark.parametrize("words", [("train", "tiny.yaml", "--init", "old"), ("eval", "old")])
def test_a_damaged_record_is_one_line_that_names_the_file(photos, words):
    path = Path("runs/old/split.json")
    values = json.loads(path.read_text())
    values["sides"] |= dict.fromkeys(list(values["sides"])[:3], "train")
    if words[0] == "eval":  # a file without its hash is not trusted either
        del values["sha256"]
    path.write_text(json.dumps(values))
    data = ("--data", "imagefolder:photos", "--name", "new") if words[0] == "train" else ()
    assert "runs/old/split.json: edited or damaged" in said(4, *words, *data)
    assert "split.json" in vitcli("runs", "verify", "old")[1]


@pytest.mark.usefixtures("without_workers", "sketched")
def test_the_trials_of_a_study_see_the_same_images_whatever_they_start_from(photos):
    """Trials share the images that were read."""
    grow(photos)
    Path("study.yaml").write_text(
        "base: tiny.yaml\ndata: {name: 'imagefolder:new', val_split: 0.2}\nseeds: [0]\n"
        "variants: {baseline: {}, tuned: {train.init: old}}\n"
    )
    said(0, "ablate", "study.yaml")
    hashes = {json.loads(p.read_text())["data_hash"] for p in Path("runs/study").rglob("meta.json")}
    assert len(hashes) == 1
