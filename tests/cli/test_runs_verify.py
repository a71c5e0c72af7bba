"""`vitcli runs verify`: a whole run is whole, and each damage is named."""

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import document, said, save_picture, typed, vitcli
from tests.plugin_rows import has
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.run.checkpoint import load_checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import load_run

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


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


@pytest.mark.seam
def test_a_whole_run(run):
    found = states(run)
    assert ({*found.values()}, len(found), "checkpoints/20" in found) == ({"ok"}, 9, True)
    assert verify(run.path, "cifar10-pocket")[0] == 0


@pytest.mark.parametrize(
    ("name", "damage", "state", "code"),
    [
        *(("status.json", Path.unlink, "missing", 4), ("result.json", flip, "damaged", 4)),
        *(("predictions.npz", damage, "damaged", 4) for damage in (cut, flip)),
        ("predictions.npz", Path.unlink, "missing", 4),
        ("checkpoints/20", shutil.rmtree, "missing", 4),  # an older one is whole
        *(("checkpoints/20/manifest.json", damage, "damaged", 4) for damage in (cut, flip)),
        ("checkpoints/15/manifest.json", Path.unlink, "incomplete", 0),
        *(("checkpoints/15/tensors.safetensors", damage, "damaged", 4) for damage in (cut, flip)),
    ],
)
def test_each_damage_is_named(run, name, damage, state, code):
    damage(run.path / name)
    verdicts = {file: found for file, found in states(run).items() if found != "ok"}
    assert verdicts == {"/".join(name.split("/")[:2]): state}
    assert verify(run.path)[0] == code


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
    assert (code, "model.head.bias has values that are not numbers" in out) == (4, True)


@pytest.mark.parametrize("damage", [shutil.rmtree, lambda folder: cut(next(folder.glob("*.s*")))])
def test_who_uses_an_older_checkpoint_says_so_once_and_an_export_is_refused(run, tiny, damage):
    damage(run.checkpoints / "20")
    for words in (("runs", "ls", "."), ("runs", "show", "run"), ("train", "--resume", "run")):
        code, out, talk = vitcli(*words)
        assert (code, (out + talk).count("the checkpoint of step 20 is")) == (0, 1), (words, talk)
    assert "train run/config.yaml -o run --rerun" in talk
    assert load_run(run.path).state == "finished"
    if damage is shutil.rmtree:
        return
    picture, told = save_picture("x.png", (9, 9)), "step 15 is used"
    uses = (
        *(("eval", "run"), ("predict", "run", picture)),
        ("attn-map", "run", picture, "--method", "grad-rollout", "-o", "x.json"),
        *[("eval", "run", "--probe", "knn")] * has("probe"),
        *[("eval", "run", "--review")] * has("review"),
        *[("explain", "attention", "run", picture)] * has("explain"),
        *(("visualize", "run", "--what", "curves"), ("train", tiny, "--init", "run", "-o", "new")),
    )
    for words in uses:
        code, out, talk = vitcli(*words)
        assert (code, (out + talk).count(told)) == (0, 1), (words, talk)
    for words in (uses[0], uses[1], ("attn-map", "run", picture, "-o", "x.json")):
        assert told in document(*words)["notes"][-1]
    for form in ("onnx", "safetensors", "pt2", "card") * has("exports"):
        assert "--rerun" in said(4, "export", "run", "--format", form)
    assert re.search(r"init_step +15$", vitcli("runs", "show", "new")[1], re.M)
    with pytest.warns(UserWarning, match="step 15 is used"):
        load_model(run)


def test_the_advice_for_a_run_without_checkpoints_trains_it_again(run):
    shutil.rmtree(run.checkpoints)
    command = said(4, "eval", "run").partition("train it again: vitcli ")[2]
    typed(command)
    assert set(states(run).values()) == {"ok"}
