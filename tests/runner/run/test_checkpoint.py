"""A checkpoint is whole or not there, and damage is seen, also in predictions."""

import contextlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from vitcli.core.spec.task import TASKS
from vitcli.runner import files
from vitcli.runner.errors import InputError
from vitcli.runner.files import to_hashed_json
from vitcli.runner.run.checkpoint import (
    Checkpoint,
    keep_weights,
    latest_checkpoint,
    load_checkpoint,
    prune,
    resumable_checkpoint,
    save_checkpoint,
)
from vitcli.runner.run.folder import MANIFEST, TENSORS, steps
from vitcli.runner.run.predictions import per_image, read_outputs


def make(step: int) -> Checkpoint:
    tensors = {
        "model.a": torch.arange(6.0).view(2, 3).mT,
        "optim.0.0.step": torch.tensor(float(step)),
    }
    return Checkpoint(step, tensors, {"sums": [0.1, 1e-300], "weights": "model"})


def reseal(path: Path, **changes: object) -> None:
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_bytes(to_hashed_json(manifest | changes))


def test_what_is_saved_is_loaded_and_tied_weights_are_saved_twice(tmp_path):
    saved = make(7)
    loaded = load_checkpoint(save_checkpoint(tmp_path, saved))
    assert loaded.step == 7
    assert loaded.state == saved.state
    assert_close(loaded.tensors, saved.tensors, rtol=0, atol=0)
    assert loaded.part("model").keys() == {"a"}
    tied = Checkpoint(1, dict.fromkeys(("model.a", "model.b"), torch.ones(2)), {})
    assert load_checkpoint(save_checkpoint(tmp_path, tied)).part("model").keys() == {"a", "b"}


def test_only_a_checkpoint_with_its_progress_can_be_continued(tmp_path):
    told: list[str] = []
    assert resumable_checkpoint(tmp_path, told.append) is None
    assert told == ["there is no checkpoint yet; starting at step 0"]
    saved = make(7)
    save_checkpoint(tmp_path, saved)
    with pytest.raises(InputError, match="only the weights"):
        resumable_checkpoint(tmp_path, told.append)
    saved.tensors["progress.sums"] = torch.zeros(2)
    save_checkpoint(tmp_path, saved)
    found = resumable_checkpoint(tmp_path, told.append)
    assert found.step == 7


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
def test_every_truncation_and_a_flipped_bit_in_every_byte_is_seen(tmp_path, name):
    path = save_checkpoint(tmp_path, make(1)) / name
    content = path.read_bytes()
    for place, byte in enumerate(content):
        flipped = bytes([byte ^ (1 << place % 8)])
        for damaged in (content[:place], content[:place] + flipped + content[place + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=r"damaged|no readable"):
                load_checkpoint(path.parent)
    path.write_bytes(content)
    load_checkpoint(path.parent)


WRONG = [
    *[("wall_seconds", None), ("wall_seconds", "1"), ("wall_seconds", -1.0)],
    *[("wall_seconds", [1]), ("wall_seconds", True)],
    *[("step_seconds", {}), ("step_seconds", 10**400), ("step_seconds", 1e300)],
    *[("best", None), ("best", [1]), ("best", [1, 2, 3]), ("best", ["a", 0]), ("best", 0.5)],
    *[("circumstances", None), ("circumstances", [1]), ("circumstances", {"threads": [1]})],
    *[("scaler", []), ("scaler", "x"), ("scaler", {"scale": "1"})],
    *[("kernels", 1), ("precision", None), ("weights", "optim"), ("model", {})],
]
FILES = ["x", {TENSORS: {"bytes": 0}}, {TENSORS: {"sha256": 1, "bytes": "x"}}]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(({"files": value}, "manifest") for value in FILES),
        *[({"step": 7}, "manifest"), ({"state": []}, "manifest")],
        *(({"state": make(1).state | {name: value}}, name) for name, value in WRONG),
    ],
)
def test_a_state_of_another_type_is_damage_even_with_the_right_hash(tmp_path, change, named):
    path = save_checkpoint(tmp_path, make(1))
    reseal(path / MANIFEST, **change)
    with pytest.raises(InputError, match=named):
        load_checkpoint(path)


def test_a_newer_format_is_named_and_bytes_that_are_no_tensors_are_damage(tmp_path):
    path = save_checkpoint(tmp_path, make(1))
    (path / TENSORS).write_bytes(b"garbage")
    reseal(path / MANIFEST, files={TENSORS: {"sha256": files.sha256(b"garbage"), "bytes": 7}})
    with pytest.raises(InputError, match="damaged"):
        load_checkpoint(path)
    reseal(path / MANIFEST, format=99)
    with pytest.raises(InputError, match="format 99"):
        latest_checkpoint(tmp_path, print)


def test_the_newest_whole_checkpoint_is_taken_and_only_damaged_ones_are_an_error(tmp_path):
    assert latest_checkpoint(tmp_path, print) is None
    for step in (2, 10, 1, 9):
        save_checkpoint(tmp_path, make(step))
    prune(tmp_path, {2, 9, 10})
    assert steps(tmp_path) == [10, 9, 2]
    (tmp_path / "10" / TENSORS).write_bytes(b"")
    (tmp_path / "11").mkdir()
    messages: list[str] = []
    latest = latest_checkpoint(tmp_path, messages.append)
    assert latest.step == 9
    assert "damaged" in messages[0]
    for step in (9, 2):
        (tmp_path / f"{step}" / TENSORS).unlink()
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        latest_checkpoint(tmp_path, lambda _: None)


def test_the_weights_of_a_finished_run_are_kept_and_may_be_kept_again(tmp_path):
    for step in (3, 7):
        save_checkpoint(tmp_path, make(step))
    for _ in range(2):
        keep_weights(tmp_path)
        assert steps(tmp_path) == [7]
        kept = load_checkpoint(tmp_path / "7")
        assert_close(kept.tensors, {"model.a": make(7).tensors["model.a"]})
    assert not (tmp_path / "7" / TENSORS).exists()


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
def test_pipes_and_files_of_another_size_are_no_checkpoint(tmp_path, name):
    path = save_checkpoint(tmp_path, make(1)) / name
    os.truncate(path, 1 << 40)
    with pytest.raises(InputError, match=r"damaged|no readable"):
        load_checkpoint(path.parent)
    for make_other in (os.mkfifo, os.mkdir):
        path.unlink(missing_ok=True)
        make_other(path)
        with pytest.raises(InputError, match=r"damaged|no readable|without tensors"):
            load_checkpoint(path.parent)


ROW = TASKS["classify"]


def archive(save=np.savez, **arrays) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_refused_or_read(save):
    """It may say that the archive is encrypted, or compressed in another way."""
    content = archive(save, logits=np.eye(2, dtype=np.float32), labels=np.array([0, 0]))
    found = per_image(read_outputs(content), ROW)
    assert (found.mean, len(found.scores)) == (0.5, 2)
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            with contextlib.suppress(ValueError):
                per_image(read_outputs(bytes(flipped)), ROW)


@pytest.mark.parametrize("labels", [[0, 2], [0, -1], [0], [], [[0], [1]]], ids=str)
def test_labels_that_do_not_belong_to_the_logits_are_refused(labels):
    content = archive(logits=np.eye(2), labels=np.array(labels, dtype=np.int64))
    with pytest.raises(ValueError, match="labels do not fit its logits"):
        per_image(read_outputs(content), ROW)
