"""Drivers: the processes that train the trials of one folder, and their common plan. No torch.

Each driver holds a lock file of its own, so that others see it, even after a kill -9. Which trials
are done is not theirs to agree on: each trial's own lock and result decide.
"""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from vitcli.runner import files
from vitcli.runner.errors import InUseError
from vitcli.runner.run.folder import hold_folder

PLAN = "plan.json"
"""File in a folder of trials: what a process must know to train them, on any machine. It is written
before training."""
LOGS = "logs"
LOCK = "driver{}.lock"
REFUSAL = "another process is running this study"
PLAN_SECONDS = 60.0
"""Time that another driver may take to prepare the folder."""


def read_plan(root: Path) -> dict[str, Any]:
    return files.read_json(root / PLAN)


def rerun_before(root: Path) -> list[str]:
    """Return the variants that an earlier call with --rerun trained again, or began to."""
    names = files.readable_json(root / PLAN).get("rerun")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


@contextlib.contextmanager
def join_drivers(root: Path) -> Iterator[int]:
    """Be a driver of a folder while entered; yield the number of this driver, from 0."""
    files.make_folder(root / LOGS)
    for number in itertools.count():
        path = root / LOGS / LOCK.format(number)
        lock = files.file_lock(path, timeout=0)
        with contextlib.suppress(filelock.Timeout), files.errors_name(path):
            lock.acquire()
            break
    try:
        with files.require_that_it_stays(root):
            yield number
    finally:
        lock.release()


def other_drivers(root: Path, own: int | None = None) -> int:
    mine = None if own is None else LOCK.format(own)
    return sum(_is_held(path) for path in _locks(root) if path.name != mine)


@contextlib.contextmanager
def no_drivers(root: Path) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        held.enter_context(hold_folder(root, REFUSAL))
        try:
            for path in _locks(root):
                held.enter_context(files.file_lock(path, timeout=0))
        except filelock.Timeout as error:
            raise InUseError(f"{root}: {REFUSAL}") from error
        yield


def prepare_folder(root: Path) -> contextlib.AbstractContextManager[None]:
    """Let one driver at a time write the plan and move old trials."""
    return hold_folder(root, "another process is preparing this study", PLAN_SECONDS)


def _locks(root: Path) -> list[Path]:
    return sorted((root / LOGS).glob(LOCK.format("*")))


def _is_held(path: Path) -> bool:
    try:
        with files.file_lock(path, timeout=0):
            return False
    except filelock.Timeout:
        return True
    except OSError:  # a read-only copy: no process can train in it
        return False
