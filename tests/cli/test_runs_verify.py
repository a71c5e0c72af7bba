"""`vitcli runs verify`: a whole run is whole, and each damage is named."""

import json
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import vitcli
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.files import commit_json
from vitcli.runner.run.checkpoint import load_checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

verify = partial(vitcli, "runs", "verify")


@pytest.fixture
def run(copy_of_run, here) -> RunDir:
    return RunDir(copy_of_run(here / "run"))


def states(run: RunDir) -> dict[str, str]:
    verdicts = json.loads(verify(run.path, "--json")[1])["verdicts"]
    return {verdict["file"]: verdict["state"] for verdict in verdicts}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def test_a_whole_run(run):
    found = states(run)
    assert ({*found.values()}, len(found), "checkpoints/20" in found) == ({"ok"}, 8, True)
    assert verify(run.path, "cifar10-pocket")[0] == 0


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "status.json", "meta.json", "metrics.jsonl", "result.json"),
        *("predictions.npz", "checkpoints/20/manifest.json", "checkpoints/15/tensors.safetensors"),
    ],
)
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_each_damage_is_named(run, name, damage):
    path = run.path / name
    if damage == "cut":
        os.truncate(path, path.stat().st_size * 2 // 3)
    elif damage == "remove":
        path.unlink()
    else:
        flip(path)
    if (damage, name) == ("remove", "config.yaml"):
        assert verify(run.path)[0] == 4, "no run is there any more"
        return
    what = "/".join(name.split("/")[:2])
    found = {key: state for key, state in states(run).items() if state != "ok"}
    harmless = damage == "flip" and name in ("meta.json", "metrics.jsonl")
    if not harmless:  # a flipped bit of a text may leave a text that can be read
        assert found.get(what) in ("damaged", "missing", "incomplete"), found
        assert verify(run.path)[0] == (0 if found[what] == "incomplete" else 4)


def test_what_a_kill_leaves_is_no_damage(run):
    (run.path / ".metrics.jsonl.abc123__").write_text("half")
    (run.checkpoints / "25").mkdir()
    found = states(run)
    assert found["checkpoints/25"] == found[".metrics.jsonl.abc123__"] == "incomplete"
    assert verify(run.path)[0] == 0


def test_weights_that_are_not_finite(run):
    checkpoint = load_checkpoint(run.checkpoints / "20")
    checkpoint.tensors["model.head.bias"][0] = float("nan")
    save_checkpoint(run.checkpoints, checkpoint)
    code, out, _ = verify(run.path)
    assert (code, "model.head.bias has values that are not finite" in out) == (4, True)


def test_the_newest_checkpoint_is_missed_even_where_an_older_one_is_whole(run):
    shutil.rmtree(run.checkpoints / "20")
    assert states(run)["checkpoints/15"] == "ok"
    assert states(run)["checkpoints/20"] == "missing"
    assert verify(run.path)[0] == 4
    messages: list[str] = []
    load_model(run, on_message=messages.append)
    assert messages == ["the checkpoint of step 20 is missing; step 15 is used"]


def test_the_hash_of_a_result_cannot_be_taken_off(run):
    path = run.path / "result.json"
    path.write_text(path.read_text().replace('"sha256"', '"rha256"'))
    assert states(run)["result.json"] == "damaged"
    meta = read_record(run).meta
    commit_json(run.path / "meta.json", meta | {"vitcli": "0.6.0"})
    assert states(run)["result.json"] == "ok", "older versions wrote none"
