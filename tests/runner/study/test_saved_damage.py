"""Damaged and forged saved trials are refused by name, whatever their checksum says."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.runner.study.test_saved import record_of, save_all, study
from tests.runner.study.test_states import fabricate
from vitcli.runner.errors import InputError
from vitcli.runner.files import sha256, to_hashed_json
from vitcli.runner.study.saved import SAVED, SavedTrials, read_saved

__all__ = ["study"]


def flip_accuracy(path: Path) -> None:
    path.write_text(path.read_text().replace("0.75", "0.85"))


def forge(path: Path, result: dict | None = None, outer: dict | None = None, **record) -> None:
    """Change fields of a saved trial and make its hash again."""
    value = json.loads(path.read_text())
    value["record"] |= record
    value["record"]["result"] |= result or {}
    value |= outer or {}
    del value["sha256"]
    path.write_bytes(to_hashed_json(value))


def forge_predictions(path: Path, **arrays: object) -> None:
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    digest = sha256(path.with_suffix(".npz").read_bytes())
    forge(path, outer={"predictions_sha256": digest})


def claim_many_entries(path: Path) -> None:
    """Write predictions whose header claims 2^50 entries."""
    with zipfile.ZipFile(path.with_suffix(".npz"), "w") as archive:
        for name in ("label", "prediction"):
            with io.BytesIO() as file:
                header = {"descr": "|u1", "fortran_order": False, "shape": (2**50,)}
                np.lib.format.write_array_header_1_0(file, header)
                archive.writestr(f"{name}.npy", file.getvalue() + bytes(8))
    digest = sha256(path.with_suffix(".npz").read_bytes())
    forge(path, outer={"predictions_sha256": digest})


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge(path: Path) -> None:
    os.truncate(path, 1 << 40)


DAMAGES = {
    "another accuracy, hash made again": lambda path: forge(path, {"test_accuracy": 0.99}),
    "7.5": lambda path: forge(path, {"test_accuracy": 7.5}),
    "-3": lambda path: forge(path, {"test_accuracy": -3.0}),
    "1e308": lambda path: forge(path, {"val_accuracy": 1e308}),
    "a curve above 1": lambda path: forge(path, curve=[[1, 75.0]]),
    "no accuracy": lambda path: forge(path, {"test_accuracy": None}),
    "operations beyond any float": lambda path: forge(path, {"forward_flops": 1 << 1100}),
    "a loss of 1e308": lambda path: forge(path, {"test_loss": 1e308}),
    "a cost of 1e308": lambda path: forge(path, {"measured": {"train_flops": 1e308}}),
    "1e308 seconds": lambda path: forge(path, {"train_seconds": 1e308}),
    "2^70 epochs": lambda path: forge(path, epochs=1 << 70),
    "a curve before epoch 0": lambda path: forge(path, curve=[[-5, 0.75]]),
    "fewer images": lambda path: forge(path, {"num_test": 1000}),
    "no sessions": lambda path: forge(path, sessions=[]),
    "no hash of predictions": lambda path: forge(path, outer={"predictions_sha256": None}),
    "an array without a dimension": lambda path: forge_predictions(path, label=1, prediction=1),
    "labels below 0": lambda path: forge_predictions(path, label=[-1], prediction=[0]),
    "2^50 entries": claim_many_entries,
    "a pipe": pipe,
    "a sparse file": huge,
    "another accuracy": flip_accuracy,
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "no JSON": lambda path: path.write_bytes(b"\x00"),
    "other predictions": lambda path: path.with_suffix(".npz").write_bytes(b"x"),
    "no predictions": lambda path: path.with_suffix(".npz").unlink(),
    "a list": lambda path: path.write_text("[]"),
}


def test_other_documents_are_no_saved_trials(study):
    SAVED.mkdir(parents=True)
    (SAVED / "table.json").write_text('{"rows": []}')
    with pytest.raises(InputError, match=r"table\.json: not a saved trial; keep saved trials in"):
        SavedTrials(SAVED)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_name(study, damage):
    fabricate("full", 0, 0.75)
    save_all(study)
    path = record_of("full/seed0")
    DAMAGES[damage](path)
    with pytest.raises(InputError, match=r"seed0-\w+\.(json|npz): (damaged|cannot be read)"):
        SavedTrials(SAVED)


def test_a_later_format_is_refused(study):
    fabricate("full", 0)
    save_all(study)
    path = record_of("full/seed0")
    value = json.loads(path.read_text()) | {"format": 9}
    value.pop("sha256")
    path.write_bytes(to_hashed_json(value))
    with pytest.raises(InputError, match="format 1; update vitcli"):
        read_saved(path)
