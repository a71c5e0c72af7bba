"""Checkpoints: folders with tensors.safetensors and manifest.json; the manifest is written last.

The manifest holds the size and the SHA-256 of the tensors, and the SHA-256 of its own other
entries, so every flipped bit is detected. A folder without a valid manifest is not
a checkpoint. No file is a pickle.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import safetensors.torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from vitcli.runner import files
from vitcli.runner.errors import InputError
from vitcli.runner.run.folder import MANIFEST, TENSORS, RunDir, delete_step, step_folders, steps
from vitcli.runner.run.record import Measured, Seconds
from vitcli.runner.text import Listener

FORMAT = 2
WEIGHTS = "weights.safetensors"
"""The file that replaces ``TENSORS`` when only the weights are kept."""


class FormatError(InputError):
    """A checkpoint in the format of another vitcli version. It is not damaged."""


class State(BaseModel):
    """The types of the state that a training continues from; imported weights have none of it."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step_seconds: Seconds = 0.0
    wall_seconds: Seconds = 0.0
    best: Annotated[list[Measured], Field(min_length=2, max_length=2)] = [0.0, 0]
    scaler: dict[str, Measured] | None = None
    precision: str = ""
    kernels: str = ""
    weights: Literal["model", "ema"] = "model"
    circumstances: dict[str, str | bool | Measured | None] = {}
    model: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by dotted name, and other state as JSON values."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names start with ``prefix.``, named without the prefix."""
        start = prefix + "."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def untie_shared_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors without shared memory, which safetensors refuses: tied weights."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        whole = tensor.contiguous()
        found[name] = whole.clone() if whole.data_ptr() in seen else whole
        seen.add(whole.data_ptr())
    return found


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``folder/<step>/`` completely or not at all."""
    path = folder / str(checkpoint.step)
    files.require_same_folder(path)
    path.mkdir(exist_ok=True)  # no parents: if somebody removed the run, do not bring it back
    files.sync_folder(folder)
    tensors = {name: tensor.detach().cpu() for name, tensor in checkpoint.tensors.items()}
    content = safetensors.torch.save(untie_shared_tensors(tensors))
    (path / MANIFEST).unlink(missing_ok=True)  # else an old manifest might stand beside new tensors
    files.commit(path / TENSORS, content)
    files.commit(path / MANIFEST, _manifest(checkpoint, TENSORS, content))
    return path


def _manifest(checkpoint: Checkpoint, name: str, content: bytes) -> bytes:
    return files.to_hashed_json(
        {
            "format": FORMAT,
            "step": checkpoint.step,
            "files": {name: {"sha256": files.sha256(content), "bytes": len(content)}},
            "state": checkpoint.state,
        }
    )


def load_checkpoint(path: Path) -> Checkpoint:
    try:
        manifest = parse_manifest(files.read_bounded(path / MANIFEST, files.MAX_JSON), path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no readable checkpoint manifest") from error
    ((name, expected),) = manifest["files"].items()
    try:
        content = files.read_bounded(path / name, expected["bytes"])
    except OSError as error:
        raise InputError(f"{path}: checkpoint without tensors: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: checkpoint is damaged: {name} is {error}") from error
    if len(content) != expected["bytes"] or files.sha256(content) != expected["sha256"]:
        raise InputError(f"{path}: checkpoint is damaged: its SHA-256 differs from the manifest's")
    return Checkpoint(manifest["step"], parse_tensors(content, path), manifest["state"])


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path}: checkpoint is damaged: {error}") from error


def parse_manifest(content: bytes, path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(content)
        version = manifest.get("format") if isinstance(manifest, dict) else None
        has_hash = type(version) is int and "sha256" in manifest
        if has_hash and not files.is_unchanged(manifest, content):
            raise InputError(f"{path}: checkpoint is damaged: its manifest does not match its hash")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no readable checkpoint manifest") from error
    if type(version) is int and version != FORMAT:
        raise FormatError(f"{path}: checkpoint format {version}; this vitcli reads format {FORMAT}")
    if not has_hash or not _is_complete(manifest, path.name):
        raise InputError(f"{path}: no readable checkpoint manifest")
    try:
        State.model_validate(manifest["state"])
    except ValidationError as error:
        field = error.errors()[0]["loc"][0]
        raise InputError(f"{path}: checkpoint is damaged: {field} in its manifest") from error
    return dict(manifest)


def _is_complete(manifest: dict[str, Any], name: str) -> bool:
    stored, state = manifest.get("files"), manifest.get("state")
    names = list(stored) if isinstance(stored, dict) else []
    entry = manifest["files"][names[0]] if names in ([TENSORS], [WEIGHTS]) else None
    return (
        type(manifest.get("step")) is int
        and str(manifest["step"]) == name
        and isinstance(state, dict)
        and isinstance(entry, dict)
        and "sha256" in entry
        and type(entry.get("bytes")) is int
    )


def latest_checkpoint(
    folder: Path, on_message: Listener, *, before: int | None = None
) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, and report damaged ones; None if there is none.

    With ``before``, it is the newest one of a step before that.
    """
    damage: list[InputError] = []
    for step in (step for step in steps(folder) if before is None or step < before):
        try:
            checkpoint = load_checkpoint(folder / str(step))
        except FormatError:
            raise
        except InputError as error:
            damage.append(error)
            continue
        for reason in damage:
            on_message(f"{reason}; step {step} is used")
        return checkpoint
    if damage:
        again = RunDir(folder.parent).rerun_command
        raise InputError(f"{folder}: every checkpoint is damaged; start over: {again}")
    return None


def resumable_checkpoint(
    folder: Path, on_message: Listener, *, before: int | None = None
) -> Checkpoint | None:
    checkpoint = latest_checkpoint(folder, on_message, before=before)
    if checkpoint is None:
        when = f"before step {before:,}" if before else "yet"
        on_message(f"there is no checkpoint {when}; starting at step 0")
    elif not checkpoint.part("progress"):
        raise InputError(
            f"{folder}: only the weights of the finished training are left, so it cannot continue;"
            f" train it again: {RunDir(folder.parent).rerun_command}"
        )
    return checkpoint


def keep_weights(folder: Path) -> None:
    """Keep only the weights of a finished run's last checkpoint.

    One rename replaces the manifest, so the last step can be read at any moment.
    """
    found = steps(folder)
    path = folder / str(found[0])
    if (path / TENSORS).exists():
        checkpoint = load_checkpoint(path)
        part = str(checkpoint.state["weights"])
        weights = {f"{part}.{name}": tensor for name, tensor in checkpoint.part(part).items()}
        content = safetensors.torch.save(weights)
        files.commit(path / WEIGHTS, content)
        files.commit(path / MANIFEST, _manifest(checkpoint, WEIGHTS, content))
        (path / TENSORS).unlink(missing_ok=True)
    prune(folder, found[:1])


def prune(folder: Path, keep: Collection[int]) -> None:
    """Remove the checkpoints of all steps except ``keep``."""
    for path in step_folders(folder):
        if int(path.name) not in keep:
            delete_step(path)
