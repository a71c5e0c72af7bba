"""Two drivers of one study, each killed once, and the trials that one driver makes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.patience import HANG
from tests.runner.engines.studies import ablate, table_of, write_study
from tests.same_run import assert_same_run
from vitcli.runner.run.folder import RunDir

CALM, FAR = Path("calm"), Path("far")


def train_calmly(environment: dict[str, str]) -> None:
    write_study(epochs=80, seeds=(0, 1))
    table_of(ablate(environment, CALM, "-j", "1"), CALM)


def drivers_here() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
            is_driver = words[0] == "ray::drive" or {"ablate", str(FAR.resolve())} < {*words}
            if is_driver and Path(os.readlink(path / "cwd")) == Path.cwd():
                found.add(int(path.name))
        except OSError:  # the process has ended
            continue
    return found


def check_that_both_have_the_same_trials() -> None:
    calm = [path.relative_to(CALM) for path in CALM.glob("*/seed*")]
    assert len(calm) == 6
    for path in calm:
        assert_same_run(RunDir(CALM / path), RunDir(FAR / path))
        one, other = ((folder / path / "predictions.npz").read_bytes() for folder in (CALM, FAR))
        assert one == other


def kill_each_once(restart: Callable[[], object]) -> None:
    killed: set[int] = set()
    until = time.monotonic() + HANG
    while len(killed) < 2:
        running = drivers_here()
        begun = len(list(FAR.glob("*/*/metrics.jsonl")))
        if len(running) == 2 and begun > len(killed):
            killed.add(victim := min(running - killed))
            os.kill(victim, signal.SIGKILL)
            restart()
        assert time.monotonic() < until
        time.sleep(0.05)
