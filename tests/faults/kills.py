"""kill -9 at random instants, again and again, until the run is done: its bits are a calm run's."""

import random
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.fork_server import Child, Tally, fingerprint, main, prepare, train_here

EPOCHS = 12


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """So many kills, each at a time drawn from the length of a calm run."""
    experiment, calm, longest = prepare(scratch, EPOCHS)
    rng, tally = random.Random(seed), Tally(differing=0, unloadable=0, lost=0)
    kills = runs = 0
    while kills < count:
        folder, step, killed = scratch / f"run{runs}", 0, 0
        while True:
            child = Child(partial(train_here, experiment, folder), scratch / "log.txt")
            if child.wait(rng.uniform(0, longest)):
                break
            child.send(signal.SIGKILL)
            child.end()
            killed += child.code == -signal.SIGKILL
            step = tally.unloadable(folder, step, f"run {runs} after {killed} kills")
        kills, what = kills + killed, f"run {runs} ({killed} kills)"
        tally.check("differing", child.code == 0, f"{what} failed: {child.words()}")
        if child.code == 0:
            tally.check("differing", fingerprint(folder) == calm, f"{what} has other bits")
        shutil.rmtree(folder)
        runs += 1
    return {"kills": kills, "runs": runs, **tally.counts, "failures": tally.failures}


if __name__ == "__main__":
    main("kills", campaign, 60)
