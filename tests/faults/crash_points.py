"""Every file operation of a run: death before, half-way and after it, a full disk, a failed fsync.

The temporary files, syncs and renames of checkpoints, metrics, status and result are counted in a
calm run; then a run is made to fail at each of them, continued, and compared.
"""

import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.fork_server import (
    Child,
    Tally,
    answer_of,
    fingerprint,
    finish,
    main,
    prepare,
    train_here,
)
from tests.faults.operations import DEATHS, ERRORS, Operations
from vitcli.runner.run.folder import MANIFEST

EPOCHS = 4


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """At most ``count`` of the points, drawn from all; 0 for every one."""
    experiment, calm, _ = prepare(scratch, EPOCHS)
    names, saved = operations_of(experiment, scratch)
    points = [
        (at, how)
        for at, name in enumerate(names)
        for how in (*DEATHS, *ERRORS)
        if how != "half" or name == "write"
    ]
    chosen = points if not count else random.Random(seed).sample(points, min(count, len(points)))
    tally, folder = Tally(differing=0, unloadable=0, lost=0), scratch / "run"
    for at, how in chosen:
        what = f"{how} operation {at} ({names[at]})"
        child = Child(partial(fail, experiment, folder, at, how), scratch / "log.txt")
        code = child.end()
        # What is there already is not made, what is gone not removed: such an operation fails by
        # itself, nobody minds, and there is no "after" to die in.
        harmless = names[at] in ("mkdir", "unlink", "rmdir") and how not in ("before", "half")
        ends = (-signal.SIGKILL,) if how in DEATHS else (1, 5)
        expected = code in ends or (harmless and code == 0)
        tally.check("differing", expected, f"{what}: ended with {code}: {child.words()}")
        if (folder / "config.yaml").exists():
            tally.unloadable(folder, max((s for n, s in saved if n <= at), default=0), what)
        try:
            finish(experiment, folder)
            tally.check("differing", fingerprint(folder) == calm, f"{what}: other bits")
        except AssertionError as error:
            tally.check("differing", False, f"{what}: {error}")
        litter = [path.name for path in folder.rglob(".*") if path.name != ".lock"]
        tally.check("differing", not litter, f"{what}: left {litter}")
        shutil.rmtree(folder)
        (scratch / "log.txt").unlink(missing_ok=True)
    found = {"operations": len(names), "points": len(points), "tried": len(chosen)}
    return {**found, **tally.counts, "failures": tally.failures}


class Counting(Operations):
    """Operations, and after how many of them each checkpoint was whole."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.saved: list[tuple[int, int]] = []

    def note(self, name: str, path: str, *args: str) -> None:
        if name == "replace" and args[0].endswith(MANIFEST):
            self.saved.append((len(self.names), int(Path(args[0]).parent.name)))


def operations_of(experiment: Path, scratch: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """The names of all file operations of a calm run, in order; (operations, step) when saved."""

    def count() -> Any:
        operations = Counting(scratch / "counted")
        operations.install()
        train_here(experiment, scratch / "counted")
        return operations.names, operations.saved

    names, saved = answer_of(count, scratch)
    assert len(saved) == EPOCHS
    return names, [(count, step) for count, step in saved]


def fail(experiment: Path, folder: Path, at: int, how: str) -> None:
    Operations(folder, at, how).install()
    train_here(experiment, folder)


if __name__ == "__main__":
    main("crash_points", campaign, 0)
