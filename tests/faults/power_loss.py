"""A power cut at any moment: what was not synced is gone, and yet no saved step is lost.

The file operations of a run are recorded. A model of a disk replays each beginning of them: bytes
that were not synced are lost; a change of a folder that was not synced is lost, kept, or lost and
kept at random, so that a later one may survive an earlier one. From what is left the run must be
readable at no earlier step than before, and end with the same bits.
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.fork_server import (
    Tally,
    answer_of,
    fingerprint,
    finish,
    main,
    prepare,
    train_here,
)
from tests.faults.operations import Operations

EPOCHS = 3


class Recorder(Operations):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.records: list[list[str]] = []

    def note(self, name: str, path: str, *args: str) -> None:
        self.records.append([name, path, *args])


class File:
    def __init__(self) -> None:
        self.written = self.on_disk = b""


class Disk:
    """Files below a folder: as the process sees them, and as a power cut leaves them."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: dict[str, File | None] = {}
        """Path -> file, or None for a folder."""
        self.on_disk: dict[str, File | None] = {}
        self.pending: list[tuple[str, dict[str, File | None], list[str]]] = []
        """Changes of a folder that are not synced: the folder, what is added, what is removed."""

    def do(self, name: str, path: str, *args: str) -> None:
        if name == "write":
            file = self.seen[path]
            assert file is not None
            file.written += args[0].encode("latin-1")
        elif name == "fsync":
            self._sync(path)
        elif name in ("create", "mkdir"):
            self._change(path, {path: File() if name == "create" else None}, [])
        elif name in ("rename", "replace"):
            self._change(path, {args[0]: self.seen[path]}, [path])
        elif name in ("unlink", "rmdir"):
            self._change(self._whole(path), {}, [self._whole(path)])

    def _whole(self, path: str) -> str:
        """``rmtree`` names what it removes from within an open folder."""
        if path.startswith("/"):
            return path
        (found,) = [known for known in self.seen if known.endswith(f"/{path}")]
        return found

    def _change(self, path: str, added: dict[str, File | None], removed: list[str]) -> None:
        self.pending.append((str(Path(path).parent), added, removed))
        _apply(self.seen, added, removed)

    def _sync(self, path: str) -> None:
        if (file := self.seen.get(path)) is not None:
            file.on_disk = file.written
            return
        for folder, added, removed in self.pending:
            if folder == path:
                _apply(self.on_disk, added, removed)
        self.pending = [change for change in self.pending if change[0] != path]

    def after_a_power_cut(self, target: Path, keep: Callable[[], bool]) -> None:
        """Write what is left below another folder; ``keep`` decides about each unsynced change."""
        left = dict(self.on_disk)
        for _, added, removed in self.pending:
            if keep():
                _apply(left, added, removed)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for path in sorted(left):
            place, file = target / path.removeprefix(self.folder).lstrip("/"), left[path]
            if not place.parent.is_dir():  # in a folder that is gone
                continue
            if file is None:
                place.mkdir(exist_ok=True)
            else:
                place.write_bytes(file.on_disk)


def _apply(
    files: dict[str, File | None], added: dict[str, File | None], removed: list[str]
) -> None:
    for path in removed:
        files.pop(path, None)
    files.update(added)


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """A cut before every operation, in three ways each; so many of what is left are trained on."""
    experiment, calm, _ = prepare(scratch, EPOCHS)
    records: list[list[str]] = answer_of(lambda: record(experiment, scratch / "recorded"), scratch)
    rng, tally = random.Random(seed), Tally(differing=0, unloadable=0, lost=0)
    ways = {"lost": lambda: False, "kept": lambda: True, "mixed": lambda: rng.random() < 0.5}
    cuts = [(at, way) for at in range(len(records) + 1) for way in ways]
    continued = set(rng.sample(cuts, min(count, len(cuts))))
    disk, safe, folder = Disk(scratch / "recorded"), 0, scratch / "run"
    for at in range(len(records) + 1):
        for way, keep in ways.items():
            what = f"power lost before operation {at} of {len(records)}, unsynced changes {way}"
            disk.after_a_power_cut(folder, keep)
            step = tally.unloadable(folder, safe, what)
            safe = max(safe, step) if way == "lost" else safe
            if (at, way) in continued:
                finish(experiment, folder)
                tally.check("differing", fingerprint(folder) == calm, f"{what}: other bits")
        if at < len(records):
            disk.do(*records[at])
    tally.check("lost", safe == EPOCHS * 4, f"at the end only step {safe} is synced")
    found = {"operations": len(records), "cuts": len(cuts), "continued": len(continued)}
    return {**found, **tally.counts, "failures": tally.failures}


def record(experiment: Path, folder: Path) -> list[list[str]]:
    recorder = Recorder(folder)
    recorder.install()
    train_here(experiment, folder)
    return recorder.records


if __name__ == "__main__":
    main("power_loss", campaign, 20)
