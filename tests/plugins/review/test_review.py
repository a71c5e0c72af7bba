"""`vitcli eval --review`: planted mistakes come first, and its corrections restore the data."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import document, said
from tests.explorer_page import parse
from tests.runner.data.conftest import shoot
from tests.runner.train.conftest import continue_run, stops_after, train, trains
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

ONCE = {"train.epochs": 1}
SWAPPED = ("dark/3", "dark/14", "bright/5", "bright/9", "bright/26")


@pytest.fixture
def planted(pictures) -> dict[str, str]:
    """Give five training pictures the other label; return their new files with the true one."""
    found = {}
    for label, number in (name.split("/") for name in SWAPPED):
        other = "dark" if label == "bright" else "bright"
        file = f"train/{other}/swapped {label}-{number}.png"
        (pictures / "train" / label / f"{number}.png").rename(pictures / file)
        found[file] = label
    return found


def reviewed(run) -> dict[str, Any]:
    found = document("eval", run, "--review")
    lists: dict[str, Any] = {name: [] for name in ("errors", "suspects")}
    for row in found["pictures"]:
        lists[row["list"]].append(row)
    return found | lists


def write_corrections(labels: dict[str, str]) -> None:
    with Path("mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file", "label"), *labels.items()])


def test_planted_labels_come_first_and_their_correction_restores_the_data(pictures, tiny, planted):
    train(tiny, "run", ONCE)
    found = reviewed("run")
    first = found["suspects"][: len(planted)]
    assert {each["name"]: each["predicted"] for each in first} == planted
    for each in first:
        assert each["given"] == each["name"].split("/")[1]
        assert each["given_probability"] < 0.5 < each["predicted_probability"]
    write_corrections(planted)
    name = f"imagefolder:{pictures}"
    mended = load_data(DataSpec(name=name, corrections="mine.csv"))
    for file, label in planted.items():
        (pictures / file).rename(pictures / "train" / label / Path(file).name)
    assert mended.data_hash == load_data(DataSpec(name=name)).data_hash


def test_everything_reads_the_corrected_pictures_of_a_run(tiny, planted):
    write_corrections(planted)
    with stops_after(3):
        train(tiny, "run", ONCE | {"data.corrections": "mine.csv"})
    assert trains(continue_run, RunDir(Path("run")))
    assert "other images" not in str(document("eval", "run")["notes"])
    said(0, "visualize", "run", "--what", "curves")
    found = reviewed("run")
    assert not {*planted} & {each["name"] for each in found["suspects"]}
    data = parse(Path(found["files"][0]).read_text()).data
    assert dict(data["corrections"]) == planted, "the next file of corrections has these, too"
    Path("mine.csv").write_text("file,label\n")
    assert "was trained on other images" in document("eval", "run")["notes"][0]
    train(tiny, "again", ONCE)
    Path("mine.csv").unlink()
    said(4, "eval", "run")


def test_labels_are_judged_by_probes_that_have_not_seen_a_copy(tiny, copied):
    train(tiny, "run", {"train.epochs": 0})
    found = reviewed("run")
    assert found["num_checked"] == 36
    assert 0.3 < found["num_suspects"] / 36 < 0.7, "the labels are chance"
    same = (copied / "train" / "dark" / "0.png").read_bytes()
    for path in copied.glob("train/dark/*.png"):
        if path.stem not in "123":
            path.write_bytes(same)
    train(tiny, "same", {"train.epochs": 0})
    found = reviewed("same")
    assert found["num_checked"] == 0
    assert "fewer than 5 different images: dark" in str(found["notes"])
    shoot(copied / "train", {"Still": (20,)}, "noise")
    shoot(copied / "test", {"Still": (1,)}, "copy")
    train(tiny, "still", {"train.epochs": 0})
    assert "Copies are in one fold, except some in 'Still'" in str(reviewed("still")["notes"])


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_page_is_whole_and_opens_no_connection(split, tiny, pictures):
    odd = pictures / split / "dark" / "<img src=x>&amp;.png"
    twin = (pictures / split / "bright" / "3.png").rename(pictures / split / "bright" / odd.name)
    odd.write_bytes(twin.read_bytes())
    train(tiny, "run", {"train.epochs": 0, "data.val_split": 20})
    found = reviewed("run")
    page = parse(Path(found["files"][0]).read_text())
    assert found["files"][0] == "run/review.html"
    assert page.policy.startswith("default-src 'none'; script-src 'sha256-")
    pictures_shown = [a["src"] for tag, a in page.tags if tag == "img"]
    assert all(str(source).startswith("data:image/") for source in pictures_shown)
    assert found["num_checked"] == 80 + (split == "train"), "with the validation images"
    shown = min(24, found["num_errors"]) + min(24, found["num_suspects"])
    assert len(pictures_shown) == 2 * shown, "maps beside them"
    files = {str(a["data-file"]) for tag, a in page.tags if "data-file" in a}
    assert files & {f"{split}/{label}/{odd.name}" for label in ("dark", "bright")}, "one is wrong"
    assert all((pictures / file).is_file() for file in files)


@pytest.mark.usefixtures("half_are_flipped")
def test_the_errors_are_those_of_the_run_the_most_confident_first(run):
    found = reviewed(run)
    shares = [each["predicted_probability"] for each in found["errors"]]
    assert found["num_errors"] == len(shares) >= 10
    assert shares == sorted(shares, reverse=True)
    assert all(each["given"] != each["predicted"] for each in found["errors"])
    accuracy = 1 - found["num_errors"] / found["num_test"]
    for least, code in ((accuracy, 0), (accuracy + 0.01, 6)):
        said(code, "eval", "run", "--review", "--min-accuracy", least)
    result = read_record(RunDir(Path("run"))).result | {"temperature": 10.0}
    del result["sha256"]
    Path("run/result.json").write_bytes(to_hashed_json(result))
    calm = reviewed("run")["errors"]
    assert max(each["predicted_probability"] for each in calm) < max(shares)
