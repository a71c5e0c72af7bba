"""What ``read_record`` makes of each file of a run folder and each kind of damage."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.fabricated import make_run, record
from vitcli.runner.errors import InUseError
from vitcli.runner.files import commit_json, to_hashed_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import as_record, read_record, saved_record

pytestmark = pytest.mark.usefixtures("here")
JSON = ("meta.json", "result.json", "status.json")
ALL = (*JSON, "metrics.jsonl", "config.yaml")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def write(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def change(**values: Any) -> Callable[[Path], object]:
    return lambda path: commit_json(path, json.loads(path.read_text()) | values)


def with_windows_lines(path: Path) -> None:
    is_json = path.suffix == ".json"
    content = to_hashed_json(json.loads(path.read_text())) if is_json else path.read_bytes()
    path.write_bytes(content.replace(b"\n", b"\r\n"))


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGED = [
    *((name, cut) for name in ("meta.json", "result.json", "status.json", "config.yaml")),
    *((name, write(b"\xff\xfe\n")) for name in ALL),
    *((name, write(text)) for name in JSON for text in (b"[1]", b"{", b'{"a": NaN}', b"1e999")),
    *((name, write(bytes(20))) for name in (*JSON, "config.yaml")),
    *((name, make_folder) for name in ALL),
    *((name, Path.unlink) for name in ALL if name != "status.json"),
    ("metrics.jsonl", cut),
    *(("metrics.jsonl", write(content)) for content in (b"", bytes(20))),
    ("status.json", change(state="asleep")),
    ("status.json", change(step=-1)),
    *(("meta.json", change(seed=seed)) for seed in ("0", -1, 0.5, True, 10**40, 7)),
    *(("meta.json", change(sessions=value)) for value in (5, [1], [{"threads": "two"}])),
    *(("meta.json", change(**{name: 7})) for name in ("experiment", "data_hash", "started")),
    ("meta.json", change(num_train=-1)),
    *(("metrics.jsonl", write(line + b"\n")) for line in (b"[1]", b"x", b'{"step": 1}')),
    ("metrics.jsonl", write(b'{"step": 1, "epoch": 1, "loss": "high"}\n')),
    ("metrics.jsonl", write(b'{"step": 1, "epoch": 1, "loss": 1%s}\n' % (b"0" * 400))),
    *((name, write(b"{}")) for name in JSON),
    ("metrics.jsonl", write(b'{"step": 1.0, "epoch": 1}\n')),
    ("metrics.jsonl", lambda path: path.write_text(2 * path.read_text())),
    ("metrics.jsonl", write(b'{"step": 1, "epoch": 1}, {"step": 1, "epoch": 1}\n')),
    ("config.yaml", write(b"seed: 1\nmodel: {depth: 3}\nlayers: 4\n")),
    *(("result.json", change(parameters=wrong)) for wrong in (-3, "many", 0.5, True, 10**40)),
    *(("result.json", change(test_accuracy=wrong)) for wrong in (5.0, -0.1, "0.5", [0.5])),
    *(("result.json", change(train_seconds=wrong)) for wrong in (None, -1.0, 10**400, 1e299)),
    ("result.json", change(train_loss="0.5")),
    ("result.json", change(precision=16)),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGED)
def test_each_damage_of_each_file_is_a_problem_that_names_it(name, damage):
    run = make_run()
    change(config_sha256=run.config_sha256())(run.path / "meta.json")
    damage(run.path / name)
    found = read_record(run)
    assert (found.state, "its  is" in found.reason) == ("damaged", False)
    assert [problem.partition(": ")[0] for problem in found.problems] == [name]
    assert found.reason == "; ".join(found.problems)
    assert found.name == "quickstart/train/seed0"
    if name != "meta.json":
        assert found.experiment == "quickstart"
    if name != "metrics.jsonl":
        assert (found.epochs, found.numbers["test_accuracy"]) == (8, 0.5), "also of the last epoch"
    json.dumps(found.document(), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "change_of_file"),
    [
        ("meta.json", change(later={"of": "another version"})),
        ("result.json", change(val_accuracy=None, later="text")),
        ("metrics.jsonl", lambda path: path.write_bytes(path.read_bytes() + b'{"step": 900, "ep')),
        ("metrics.jsonl", lambda path: path.write_text(f"{path.read_text()}\n \n")),
        ("status.json", lambda path: path.with_name("other.json").write_bytes(b"{")),
        ("config.yaml", lambda path: path.write_text(f"# mine\n{path.read_text()}")),
        *((name, with_windows_lines) for name in ALL),
    ],
)
def test_what_another_version_or_a_kill_leaves_is_no_damage(name, change_of_file):
    run = make_run()
    change(config_sha256=run.config_sha256())(run.path / "meta.json")
    change_of_file(run.path / name)
    found = read_record(run)
    assert (found.state, found.problems, found.test_score) == ("finished", (), 0.5)
    assert found.epochs == 8


@pytest.mark.parametrize(
    ("version", "has_hash", "is_sound"),
    [("1.0.0", True, True), ("1.0.0", False, False), ("0.6.2", False, True), (None, False, True)],
)
def test_a_result_needs_its_hash_since_vitcli_wrote_one(version, has_hash, is_sound):
    """Without a status.json, a result with a hash says that the run is finished."""
    run = make_run(meta={"vitcli": version} if version else {})
    path = run.path / "result.json"
    if has_hash:
        path.write_bytes(to_hashed_json(json.loads(path.read_text())))
    assert read_record(run).state == ("finished" if is_sound else "damaged")
    (run.path / "status.json").unlink()
    found = read_record(run)
    expected = ("finished", 800) if has_hash else ("damaged" if version == "1.0.0" else "failed", 0)
    assert (found.state, found.step) == expected
    if has_hash:
        path.write_text(path.read_text().replace("0.5", "0.6"))
        assert "does not match its hash" in read_record(run).reason


def test_a_run_that_no_process_holds_was_interrupted():
    run = make_run(state="running")
    with run.lock():
        assert read_record(run).state == "running"
        assert read_record(run).at_this_moment().state == "running"
    before = read_record(run)
    assert (before.state, before.status) == ("interrupted", "running")
    with run.lock():
        assert before.at_this_moment().state == "running"


@pytest.mark.parametrize(("error", "is_used"), [(OSError, False), (InUseError, True)])
def test_a_run_on_a_disk_that_is_only_read_is_not_in_use(monkeypatch, error, is_used):
    run = make_run(state="running")
    monkeypatch.setattr(RunDir, "lock", Mock(side_effect=error("no")))
    assert run.is_in_use() is is_used
    (run.path / ".lock").unlink()
    assert not run.is_in_use()


def test_a_result_can_be_taken_back():
    run = make_run()
    run.set_result(json.loads((run.path / "result.json").read_text()))
    assert read_record(run).state == "finished"
    run.delete_result()
    run.delete_result()
    assert read_record(run).result == {}


def test_numbers_are_those_of_the_end_or_reached_so_far_and_of_validation_images_in_a_search():
    run = make_run(state="running")
    assert read_record(run).numbers["epochs"] == 3
    assert read_record(run).test_score == 0.5
    run.set_status("interrupted", 300, "stopped", {"test_accuracy": 0.7, "epochs": 3})
    assert read_record(run).test_score == 0.7
    run.set_status("interrupted", 300, "stopped", {"test_accuracy": 7})
    assert read_record(run).test_score == 0.5, "an impossible number is left out"
    facts = {"test_accuracy": None, "val_accuracy": 0.25, "num_test": 0}
    run = make_run(result=facts)
    run.set_metrics([record(8, 0.1) | {"test_accuracy": None}])
    found = read_record(run)
    assert (found.score, found.is_validation) == (0.25, True)


def test_the_headline_of_own_code_is_known_without_the_code():
    """A list must not judge such a run by the accuracy; older runs do not state the metric."""
    stated = {"name": "rmse", "label": "RMSE", "scale": 1.0, "unit": "", "digits": 3, "short": ""}
    run = make_run(meta={"headline": stated | {"higher_is_better": False}})
    change(test_rmse=0.25)(run.path / "result.json")
    found = read_record(run)
    assert (found.test_score, found.headline.higher_is_better) == (0.25, False)
    assert found.headline.text(0.25) == "0.250"
    percent = stated | {"scale": 100, "unit": "%", "higher_is_better": True}
    change(headline=percent)(run.path / "meta.json")
    assert read_record(run).headline.text(0.25) == "25.000 %"
    for wrong in ("rmse", {"name": "rmse"}, stated | {"digits": 10**6, "higher_is_better": True}):
        change(headline=wrong)(run.path / "meta.json")
        assert read_record(run).headline.name == "accuracy"
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("code: {}", "code: {mine.py: '00'}"))
    config.write_text(config.read_text().replace("name: classify", "name: mine"))
    change(headline=percent | {"name": "score"})(run.path / "meta.json")
    assert read_record(run).headline.unit == "%", "what stands for an unknown one has this name"


def test_an_entry_of_a_document_and_a_saved_trial_are_read_back():
    run = read_record(make_run(meta={"sessions": [{"device": "cuda", "threads": 3}]}))
    entry = run.entry()
    assert as_record(json.loads(json.dumps(entry))).entry() == entry
    for wrong in ({"test_accuracy": "0.5"}, {"measured": 5}, {"later": 1}, {"state": "damaged"}):
        with pytest.raises(ValueError, match=r"damaged|mapping"):
            as_record(entry | wrong)
    for name in ("seed", "state", "config_hash"):
        with pytest.raises(ValueError, match=f"{name} is damaged"):
            as_record({key: value for key, value in entry.items() if key != name})
    line = run.saved()
    back = saved_record(json.loads(json.dumps(line)), {"task.name": "classify"}, "trials")
    assert (back.saved(), back.source, back.task_name) == (line, "trials", "classify")
    for wrong in ({"seed": "0"}, {"epochs": -1}, {"state": "running"}, {"sessions": []}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            saved_record(line | wrong, {}, "")
    with pytest.raises(ValueError, match="test_accuracy"):
        saved_record(line | {"result": line["result"] | {"test_accuracy": 7}}, {}, "")


@pytest.mark.parametrize("name", ALL)
def test_a_file_that_cannot_be_read_is_not_called_damaged(monkeypatch, name):
    run = make_run()
    real = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
    (problem,) = read_record(run).problems
    assert problem.startswith(f"{name}: cannot be read: ")
    assert "Permission denied" in problem
