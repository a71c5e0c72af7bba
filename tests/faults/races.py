"""Processes that start the same run at the same instant: one trains, the others change nothing."""

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from tests.faults.fork_server import Child, Tally, fingerprint, main, prepare, train_here
from tests.patience import HANG
from vitcli.runner.errors import InUseError
from vitcli.runner.train.events import Event, Started

MOST = 8


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """So many races of 2 to 8 starters; the winner goes on when all others have ended."""
    experiment, calm, _ = prepare(scratch, 1)
    rng, tally, starters = random.Random(seed), Tally(without_one_winner=0, disturbed=0), 0
    for number in range(count):
        crowd = rng.randint(2, MOST)
        starters += crowd
        race(experiment, scratch / f"run{number}", crowd, tally)
        same = fingerprint(scratch / f"run{number}") == calm
        tally.check("disturbed", same, f"run{number}: the winner ended with other bits")
        shutil.rmtree(scratch / f"run{number}")
    return {"races": count, "starters": starters, **tally.counts, "failures": tally.failures}


def race(experiment: Path, folder: Path, crowd: int, tally: Tally) -> None:
    """Start them at once; the winner waits, once its run has begun, until the others are gone."""
    gun, gate = os.pipe(), os.pipe()

    def start() -> None:
        os.close(gun[1])
        os.close(gate[1])
        os.read(gun[0], 1)  # ends when the parent closes its end
        train_here(experiment, folder, on_event=wait_when_started)

    def wait_when_started(event: Event) -> None:
        if isinstance(event, Started):
            os.read(gate[0], 1)

    log = folder.parent / "log.txt"
    children = [Child(start, log) for _ in range(crowd)]
    os.close(gun[0])
    os.close(gate[0])
    os.close(gun[1])
    waiting, deadline = list(children), time.monotonic() + HANG
    while len(waiting) > 1 and time.monotonic() < deadline:
        ended = [child for child in waiting if child.wait(0.02)]
        waiting = [child for child in waiting if child not in ended]
    os.close(gate[1])
    codes = [child.end() if child.code is None else child.code for child in children]
    what = f"{folder.name}, {crowd} starters: exit codes {codes}"
    one = sorted(codes) == [0, *[InUseError.exit_code] * (crowd - 1)]
    tally.check("without_one_winner", one, what)


if __name__ == "__main__":
    main("races", campaign, 20)
