"""Every file operation of a run: death before, half-way and after it, a full disk, a failed fsync.

The temporary files, syncs and renames of checkpoints, metrics, status and result are counted in a
calm run; then a run is made to fail at each of them, continued, and compared.
"""

import json
import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.fork_server import (
    Child,
    Tally,
    fingerprint,
    finish,
    main,
    make_experiment,
    newest,
    train_here,
)
from tests.faults.operations import DEATHS, ERRORS, Operations

EPOCHS = 4


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """At most ``count`` of the points, drawn from all; 0 for every one."""
    experiment = make_experiment(scratch, EPOCHS)
    finish(experiment, scratch / "first")
    finish(experiment, scratch / "calm")
    calm, names = fingerprint(scratch / "calm"), operations_of(experiment, scratch)
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
        expected = code == -signal.SIGKILL if how in DEATHS else code in (0, 1, 5)
        tally.check("differing", expected, f"{what}: ended with {code}: {child.words()}")
        if (folder / "config.yaml").exists():
            tally.unloadable(folder, 0, what)
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


def operations_of(experiment: Path, scratch: Path) -> list[str]:
    """The names of all file operations of a calm run, in order."""
    folder, report = scratch / "counted", scratch / "operations.json"

    def count() -> None:
        operations = Operations(folder).install()
        train_here(experiment, folder)
        report.write_text(json.dumps(operations.names))

    child = Child(count, scratch / "log.txt")
    assert child.end() == 0, child.words()
    assert newest(folder)
    names: list[str] = json.loads(report.read_text())
    return names


def fail(experiment: Path, folder: Path, at: int, how: str) -> None:
    Operations(folder, at, how).install()
    train_here(experiment, folder)


if __name__ == "__main__":
    main("crash_points", campaign, 0)
