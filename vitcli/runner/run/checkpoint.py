"""Checkpoints: a folder of tensors.safetensors and manifest.json, the manifest written last.

The manifest holds the SHA-256 and size of the tensors and, since format 2, the SHA-256 of all else
that it says, so a folder without a valid manifest is no checkpoint and every flipped bit is seen.
Nothing here is a pickle.
"""

import json
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from vitcli.runner.errors import InputError
from vitcli.runner.files import commit, sealed, sha256, sync_folder
from vitcli.runner.run.folder import MANIFEST, steps

FORMAT = 2
READABLE = (1, FORMAT)
TENSORS = "tensors.safetensors"
WEIGHTS = "weights.safetensors"
"""What is left of the tensors once only the weights are kept."""


class FormatError(InputError):
    """A whole checkpoint of another vitcli; it must not be taken for a damaged one."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by dotted name, and plain state that JSON can hold."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors under ``prefix.``, without it."""
        start = prefix + "."
        return {k.removeprefix(start): v for k, v in self.tensors.items() if k.startswith(start)}


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``folder/<step>/`` so that it exists whole or not at all."""
    path = folder / str(checkpoint.step)
    path.mkdir(exist_ok=True)  # not the folders above it: who removed them meant it
    sync_folder(folder)
    tensors = {name: tensor.detach().cpu() for name, tensor in checkpoint.tensors.items()}
    content = safetensors.torch.save({k: v.contiguous() for k, v in tensors.items()})
    (path / MANIFEST).unlink(missing_ok=True)  # an old one must not vouch for new tensors
    commit(path / TENSORS, content)
    commit(path / MANIFEST, _manifest(checkpoint, TENSORS, content))
    return path


def _manifest(checkpoint: Checkpoint, name: str, content: bytes) -> bytes:
    return sealed(
        {
            "format": FORMAT,
            "step": checkpoint.step,
            "files": {name: {"sha256": sha256(content), "bytes": len(content)}},
            "state": checkpoint.state,
        }
    )


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint folder after checking every byte of it.

    Raises:
        InputError: It is damaged, or of another format.
    """
    try:
        manifest = parse_manifest((path / MANIFEST).read_bytes(), path)
    except OSError as error:
        raise InputError(f"{path}: no readable checkpoint manifest") from error
    ((name, expected),) = manifest["files"].items()
    try:
        content = (path / name).read_bytes()
    except OSError as error:
        raise InputError(f"{path}: checkpoint without tensors: {error.strerror}") from error
    if len(content) != expected["bytes"] or sha256(content) != expected["sha256"]:
        raise InputError(f"{path}: checkpoint is damaged: its SHA-256 differs from the manifest's")
    return Checkpoint(manifest["step"], parse_tensors(content, path), manifest["state"])


def parse_tensors(content: bytes, path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; InputError where it is none."""
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path}: checkpoint is damaged: {error}") from error
    return {name: _shaped_as_today(name, tensor) for name, tensor in tensors.items()}


def _shaped_as_today(name: str, tensor: Tensor) -> Tensor:
    """Up to 0.7.0 Linformer's projections of each head were (h, r, N), now they are (h r, N)."""
    is_of_heads = name.endswith(("attend.key_proj", "attend.value_proj")) and tensor.ndim == 3
    return tensor.flatten(0, 1) if is_of_heads else tensor


def parse_manifest(content: bytes, path: Path) -> dict[str, Any]:
    """What a manifest says; InputError where it is none of the checkpoint folder ``path``."""
    try:
        manifest = json.loads(content)
        version = manifest.get("format") if isinstance(manifest, dict) else None
        has_seal = type(version) is int and (version > 1 or "sha256" in manifest)
        if has_seal and content != sealed({k: v for k, v in manifest.items() if k != "sha256"}):
            raise InputError(f"{path}: checkpoint is damaged: its manifest does not match its hash")
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no readable checkpoint manifest") from error
    if has_seal and version not in READABLE:
        raise FormatError(f"{path}: checkpoint format {version}; this vitcli reads format {FORMAT}")
    if version not in READABLE or not _is_complete(manifest, path.name):
        raise InputError(f"{path}: no readable checkpoint manifest")
    return dict(manifest)


def _is_complete(manifest: dict[str, Any], name: str) -> bool:
    files, state = manifest.get("files"), manifest.get("state")
    names = list(files) if isinstance(files, dict) else []
    entry = manifest["files"][names[0]] if names in ([TENSORS], [WEIGHTS]) else None
    return (
        type(manifest.get("step")) is int
        and str(manifest["step"]) == name
        and isinstance(state, dict)
        and isinstance(entry, dict)
        and {"sha256", "bytes"} <= entry.keys()
    )


def latest_checkpoint(folder: Path, on_message: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint; None where there never was one.

    A damaged one is named and the next older is taken; if all are damaged, that is an error:
    starting over silently would hide it.
    """
    found = steps(folder)
    for step in found:
        try:
            return load_checkpoint(folder / str(step))
        except FormatError:
            raise
        except InputError as error:
            on_message(f"{error}; trying the one before it")
    if found:
        raise InputError(f"{folder}: every checkpoint is damaged; '--rerun' starts over")
    return None


def keep_weights(folder: Path) -> None:
    """Of a finished run's checkpoints, keep the weights of the last one, and nothing else.

    The manifest changes hands in one rename, so at any instant the last step can be read.
    """
    found = steps(folder)
    path = folder / str(found[0])
    if (path / TENSORS).exists():
        checkpoint = load_checkpoint(path)
        part = str(checkpoint.state["weights"])
        weights = {f"{part}.{name}": tensor for name, tensor in checkpoint.part(part).items()}
        content = safetensors.torch.save(weights)
        commit(path / WEIGHTS, content)
        commit(path / MANIFEST, _manifest(checkpoint, WEIGHTS, content))
        (path / TENSORS).unlink(missing_ok=True)
    prune(folder, found[:1])


def prune(folder: Path, keep: Collection[int]) -> None:
    """Remove step folders other than ``keep``, the manifest first: none is left half valid."""
    for path in folder.iterdir():
        if path.name.isdecimal() and int(path.name) not in keep:
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
