"""`vitcli predict`: its rows in all forms, a file of them that is continued, and bad pictures."""

import csv
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import vitcli
from tests.cli.commands import document, printed, said
from tests.cli.commands import vitcli as command
from tests.own_code import forget
from tests.patience import HANG
from vitcli.cli.main import app
from vitcli.runner.evaluate.classifier import FIELDS
from vitcli.runner.evaluate.weights import default_run
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.folder import RunDir

__all__ = ["forget"]
OWN = """
from torch import nn
from vitcli.parts import objective
@objective
def own(logits, targets):
    return nn.functional.cross_entropy(logits, targets)
"""


@pytest.fixture
def photos(pictures) -> Path:
    """A folder as people have it: numbers without zeros, folders inside, other files."""
    bright, dark = (pictures / "test" / name for name in ("bright", "dark"))
    folder = Path("photos")
    for path in ("Größe.PNG", "10.png", "2.png", "old/my cat.png", "old/1.png"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy((dark if path == "old/1.png" else bright) / "3.png", folder / path)
    for path in (".DS_Store", ".hidden.png", "notes.txt", ".cache/3.png"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("no picture")
    return folder


IN_ORDER = [f"photos/{n}" for n in ("2.png", "10.png", "Größe.PNG", "old/1.png", "old/my cat.png")]


def test_unlikely_pictures_are_rejected(run, photos):
    shares = [row["probability"] for row in document("predict", run, photos)["pictures"]]
    least = (min(shares) + max(shares)) / 2
    found = document("predict", run, photos, "--reject", least)
    accepted = [share >= least for share in shares]
    assert [row["accepted"] for row in found["pictures"]] == accepted
    assert found["num_accepted"] == sum(accepted) > 0


def test_a_prediction_set_holds_the_classes_that_reach_the_threshold(run, photos):
    for threshold, size in ((1e-9, 2), (0.501, 1)):
        numbers = {"set_threshold_0.9": threshold, "temperature": 999.0}
        Path(run, "result.json").write_bytes(to_hashed_json(numbers))
        for row in document("predict", run, photos, "--coverage", 0.9)["pictures"]:
            assert row["set"] == [*row["probabilities"]][:size]
            assert row["accepted"] == (size == 1)
    Path(run, "result.json").write_bytes(to_hashed_json({"set_threshold_0.9": 0.0}))
    said(2, "predict", run, photos, "--coverage", 0.9)


def rows_of_csv(text: str) -> list[dict[str, Any]]:
    """Return the rows with the types of the schema."""
    rows = list[dict[str, Any]]()
    for row in csv.DictReader(io.StringIO(text)):
        values = {name: json.loads(row[name] or "null") for name in ("accepted", "set")}
        values["probabilities"] = json.loads(row["probabilities"])
        values["probability"] = float(row["probability"]) if row["probability"] else None
        texts = {name: row[name] or None for name in ("file", "class", "error", "classifier")}
        rows.append(texts | values | {"schema": int(row["schema"])})
    return rows


FORMS: dict[str, Callable[[str], list[dict[str, Any]]]] = {
    "csv": rows_of_csv,
    "jsonl": lambda text: [json.loads(line) for line in text.splitlines()],
    "json": lambda text: json.loads(text)["pictures"],
}


@pytest.mark.parametrize("words", [[], ["--reject", 0.6], ["--top", 1]])
def test_csv_json_lines_json_and_python_have_the_same_rows(run, photos, words):
    (photos / "2.png").write_text("words")
    options = {"reject": 0.6} if "--reject" in words else {}
    answers = vitcli.load_classifier(run, device="cpu", **options)([*IN_ORDER])
    wanted = [answer.to_dict(1 if "--top" in words else None) for answer in answers]
    assert tuple(wanted[0]) == FIELDS
    for form, read in FORMS.items():
        code, out, _ = command("predict", run, photos, "--format", form, *words)
        assert (code, read(out)) == (3, wanted), form


def test_top_is_the_number_of_probabilities(photos):
    for words, number in (([], 5), (["--top", 4], 4), (["--top", 99], 10)):
        out = printed("predict", "cifar10-pocket", *IN_ORDER[:2], "--format", "csv", *words)
        assert [len(row["probabilities"]) for row in rows_of_csv(out)] == [number] * 2
        assert len(document("predict", "cifar10-pocket", IN_ORDER[0], *words)["top"]) == number


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [["bad.png"], ["bad.png", "missing.png"]])
def test_of_bad_pictures_alone_there_is_a_row_each(run, here, form, names):
    Path("bad.png").write_text("words")
    code, out, talk = command("predict", run, *names, "--format", form)
    rows = FORMS[form](out)
    assert (code, [row["file"] for row in rows]) == (4, names)
    for row in rows:
        assert row["error"].startswith(row["file"])
        assert talk.count(row["error"]) == 1
    code, out, talk = command("predict", run, *names)
    assert (code, "bad.png: not a picture" in talk) == (4, True)


def test_pictures_are_named_by_a_file(run, photos):
    names = [*IN_ORDER, "photos/a\nb.png", r"photos/a\nb.png", os.fsdecode(b"photos/\xff.png")]
    for name in names[len(IN_ORDER) :]:
        shutil.copy(IN_ORDER[0], name)
    Path("lines").write_text("\n".join([*IN_ORDER, "", "missing.png\n"]))
    Path("nul").write_bytes(b"\0".join(os.fsencode(name) for name in names))
    for file, wanted, code in (("lines", [*IN_ORDER, "missing.png"], 3), ("nul", names, 0)):
        done, out, _ = command("predict", run, "--files-from", file, "--format", "jsonl")
        assert (done, [json.loads(line)["file"] for line in out.splitlines()]) == (code, wanted)
        out = command("predict", run, "--files-from", file, "--format", "csv")[1]
        assert len(out.splitlines()) == len(wanted) + 1, "one line a row"
        cells = [row["file"] for row in rows_of_csv(out)]
        escaped = [r"photos/a\nb.png", r"photos/a\\nb.png", r"photos/\udcff.png"]
        assert cells == [*wanted[: len(IN_ORDER)], *(escaped if code == 0 else wanted[-1:])]
    words = ["predict", run, IN_ORDER[0], "--format", "jsonl", "--files-from", "-"]
    out = CliRunner().invoke(app, words, input=b"photos\n").stdout
    files = [json.loads(line)["file"] for line in out.splitlines()]
    assert sorted(files) == sorted([IN_ORDER[0], *names]), "those of the command, and of a folder"
    for encoding in ("utf-8-sig", "utf-16"):  # of Windows
        Path("windows").write_text("\r\n".join(IN_ORDER), encoding)
        _, out, _ = command("predict", run, "--files-from", "windows", "--format", "csv")
        assert [row["file"] for row in rows_of_csv(out)] == IN_ORDER
    Path("empty").write_text("\n")
    for file in ("empty", "missing", "photos"):
        assert f"{file}:" in said(4, "predict", run, "--files-from", file)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_that_was_cut_anywhere_is_continued(run, photos, suffix):
    words = ("predict", run, photos, "-o", f"a.{suffix}")
    (photos / "2.png").write_text("words")
    said(3, *words)
    whole = Path(f"a.{suffix}").read_bytes()
    ends = [0, 1, *(end + step for end in (20, len(whole) // 2, len(whole)) for step in (-1, 0))]
    ends += [whole.index(b"\n") + step for step in (0, 1)]
    for end in ends:
        Path(f"a.{suffix}").write_bytes(whole[:end])
        talk = said(3, *words, "--resume")
        text = Path(f"a.{suffix}").read_text()
        assert text.count("\n") == whole.count(b"\n")
        for row, wanted in zip(FORMS[suffix](text), FORMS[suffix](whole.decode()), strict=True):
            for name in ("probability", "probabilities"):  # another batch rounds otherwise
                assert row.pop(name) == pytest.approx(wanted.pop(name)), end
            assert row == wanted, end
    assert "1 of 5 images" in talk, "a failure of before counts"
    found = document(*words, "--resume", code=3)
    assert (found["num_pictures"], found["num_failed"], found["files"]) == (5, 1, [f"a.{suffix}"])


def test_a_picture_that_is_named_twice_has_two_rows(run, photos):
    Path("one.csv").write_text("")
    words = ("predict", run, IN_ORDER[0], IN_ORDER[1], IN_ORDER[0])
    said(0, *words[:4], "-o", "one.csv", "--resume")
    said(0, *words, "-o", "one.csv", "--resume")
    files = [row["file"] for row in rows_of_csv(Path("one.csv").read_text())]
    assert files == [IN_ORDER[0], IN_ORDER[1], IN_ORDER[0]]


def test_a_file_is_written_by_one_process_at_a_time(run, photos):
    words = ("predict", run, photos, "-o", "a.csv", "--resume")
    said(0, *words)
    before = Path("a.csv").read_bytes()
    with Path("a.csv").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # an exclusive lock waits for it, too
        assert "-o a.csv: another process is writing" in said(7, *words, IN_ORDER[0])
    assert Path("a.csv").read_bytes() == before
    said(0, *words, IN_ORDER[0])


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new, 1)


REFUSED: dict[str, list[tuple[Callable[[str], str], list[object], int, str]]] = {
    "csv": [
        (str, [], 2, "--resume to continue"),
        (str, ["--resume", "--reject", 0.5], 2, "a.csv:2: an answer of"),
        (replaced("file,", "path,"), ["--resume"], 4, "a.csv:1: no answer of run@"),
        (replaced(",1\n", ",2\n"), ["--resume"], 4, "a.csv:2: schema 2, not 1"),
        (replaced("photos", "a,b"), ["--resume"], 4, "a.csv:2: no answer"),
        (str, ["--resume", "--top", 1], 2, "a.csv:2: --top 2, not 1"),
        (lambda _: "my notes", ["--resume"], 4, "a.csv:1: no answer"),
        (str, ["--resume", "--format", "jsonl"], 2, "two formats"),
    ],
    "jsonl": [
        (str, [], 2, "--resume to continue"),
        (str, ["--resume", "--fit", "pad"], 2, "a.jsonl:1: an answer of"),
        (replaced('"schema": 1', '"schema": 0'), ["--resume"], 4, "schema 0, not 1"),
        (replaced("{", ""), ["--resume"], 4, "a.jsonl:1: no answer"),
        (replaced('"error"', '"problem"'), ["--resume"], 4, "a.jsonl:1: no answer"),
        (lambda _: "my notes", ["--resume"], 4, "a.jsonl:1: no answer"),
    ],
    "txt": [(lambda _: "notes", ["--resume"], 2, "ends with .csv or .jsonl")],
}


@pytest.mark.parametrize("suffix", REFUSED)
def test_a_file_of_something_else_is_refused_and_stays(run, photos, suffix):
    file = Path(f"a.{suffix}")
    if suffix != "txt":
        said(0, "predict", run, *IN_ORDER[:2], "-o", file)
    content = file.read_text() if file.exists() else ""
    for change, words, code, text in REFUSED[suffix]:
        before = change(content)
        file.write_text(before)
        assert text in said(code, "predict", run, photos, "-o", file, *words)
        assert file.read_text() == before
    assert "add -o" in said(2, "predict", run, photos, "--resume")


def test_a_killed_prediction_is_continued(run, photos, environment):
    pictures = [shutil.copy(IN_ORDER[0], f"photos/{number}.png") for number in range(100, 700)]
    Path("list").write_text("\n".join(pictures))
    file = Path("a.csv")
    words = ["predict", run, "--files-from", "list", "-o", str(file), "--resume"]
    process = subprocess.Popen([sys.executable, "-m", "vitcli", *words], env=environment)
    deadline = time.monotonic() + HANG
    while not (file.exists() and file.read_bytes().count(b"\n") > 50):
        assert process.poll() is None or file.exists()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    process.wait(HANG)
    before = file.read_bytes()
    said(0, *words)
    assert file.read_bytes().startswith(before[: before.rindex(b"\n")])
    assert [row["file"] for row in rows_of_csv(file.read_text())] == pictures


def test_a_temperature_from_few_wrong_answers_is_doubted(run, photos):
    meta = json.loads(Path(run, "meta.json").read_text())
    for temperature, accuracy, doubted in (
        (0.16, 0.95, True),
        (0.16, 0.4, False),
        (0.16, None, False),
        (2, 0.95, False),
    ):
        numbers = {"temperature": temperature, "val_accuracy": accuracy, "set_threshold_0.9": 0.5}
        Path(run, "result.json").write_bytes(to_hashed_json(numbers))
        Path(run, "meta.json").write_text(json.dumps(meta | {"num_val": 20}))
        notes = document("predict", run, photos)["notes"]
        assert ["too sure" in note for note in notes] == [True] * doubted


def test_a_file_of_a_model_with_another_normalisation_is_not_continued(run, photos):
    said(0, "predict", run, photos, "-o", "a.csv")
    spec, meta = RunDir(Path(run)).spec(), json.loads(Path(run, "meta.json").read_text())
    RunDir(Path(run)).create(spec.replace(data=spec.data.replace(mean=(0.1, 0.2, 0.3))))
    Path(run, "meta.json").write_text(json.dumps(meta | {"config_sha256": None}))
    assert "the model or an option" in said(2, "predict", run, photos, "-o", "a.csv", "--resume")


def test_a_run_whose_head_was_never_trained_says_so_and_is_no_default(run, tiny, photos):
    words = ["train", tiny, "--epochs", 0, "--name"]
    said(0, *words, "kept", "--init", run)
    said(0, *words, "drawn")
    said(0, *words, "copied", "--init", "drawn")
    assert default_run().name == "kept"
    Path("own.py").write_text(OWN)
    own = ["--code", "own.py", "-s", "task.name=own", "--epochs", 1, "--limit-batches", 1]
    said(0, "train", tiny, *own, "--name", "own")
    said(0, *words, "of-own", "--init", "own")
    for name in ("kept", "of-own", "drawn", "copied"):
        for words in (["predict", name, photos], ["eval", name]):
            notes = document(*words)["notes"]
            assert any("never trained" in n for n in notes) is (name in ("drawn", "copied")), words
