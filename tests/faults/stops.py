"""SIGINT, SIGTERM, SIGHUP at random moments: a checkpoint of the last step, and the same bits."""

import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from tests.faults.fork_server import Child, Tally, fingerprint, finish, main, prepare, train_here
from vitcli.runner.run.record import read_record
from vitcli.runner.train.events import EpochDone, Event, Started

EPOCHS = 12
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def campaign(scratch: Path, count: int, seed: int) -> dict[str, Any]:
    """So many signals of each kind, sent to trainings under way; each fifth is sent twice."""
    experiment, calm, longest = prepare(scratch, EPOCHS)
    rng, tally = random.Random(seed), Tally(wrong_ends=0, differing=0)
    longest /= EPOCHS
    slowest, finished = 0.0, 0
    for number in range(count * len(NUMBERS)):
        which, folder = NUMBERS[number % len(NUMBERS)], scratch / "run"
        twice = number % 5 == 4
        moment = rng.randrange(round(0.7 * EPOCHS)), rng.uniform(0, longest)
        code, seconds = stop(experiment, folder, which, twice, *moment)
        slowest = max(slowest, seconds)
        record, what = read_record(folder), f"{which.name} {number}{' twice' if twice else ''}"
        state = record.status, record.step
        tidy = code == 128 + which and state == ("interrupted", record.folder.last_step())
        # A second signal acts at once, as it does without vitcli: KeyboardInterrupt, or death.
        at_once = twice and code in (1, -which)
        finished += code == 0  # it came too late, or not at all
        tally.check("wrong_ends", tidy or code == 0 or at_once, f"{what}: {code}, {state}")
        finish(experiment, folder)
        tally.check("differing", fingerprint(folder) == calm, f"{what}: other bits")
        shutil.rmtree(folder)
    heeded = finished < 0.5 * count * len(NUMBERS)
    tally.check("wrong_ends", heeded, f"{finished} trainings went on to their end")
    found = {"signals": count * len(NUMBERS), "slowest_end_seconds": round(slowest, 2)}
    return {**found, **tally.counts, "failures": tally.failures}


def stop(
    experiment: Path, folder: Path, number: signal.Signals, twice: bool, epochs: int, after: float
) -> tuple[int, float]:
    """Exit code, and the seconds from the signal to the end.

    The signal is sent so many epochs and seconds after the training has started: by the clock
    alone it would come too late, or too early, where other programs come and go.
    """
    begun = folder.with_name("begun")
    begun.unlink(missing_ok=True)

    def tell(event: Event) -> None:
        done = 0 if isinstance(event, Started) else None
        if isinstance(event, EpochDone):
            done = event.record["epoch"]
        if done == epochs:
            begun.touch()

    log = folder.parent / "log.txt"
    child = Child(lambda: train_here(experiment, folder, on_event=tell), log)
    while not begun.exists() and not child.wait(0.002):
        pass
    if child.code is None and not child.wait(after):
        sent = time.monotonic()
        child.send(number)
        if twice and not child.wait(after % 0.05):
            child.send(number)
        return child.end() if child.code is None else child.code, time.monotonic() - sent
    assert child.code is not None
    return child.code, 0.0


if __name__ == "__main__":
    main("stops", campaign, 10)
