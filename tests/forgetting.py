"""Own code is forgotten, as the end of a process does."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS
from vitcli.core.spec.data import POLICIES
from vitcli.core.spec.metrics import METRICS
from vitcli.core.spec.own import PARTS, TEXTS
from vitcli.core.spec.slots import SLOTS
from vitcli.runner.experiment import own_code
from vitcli.runner.run import folder as run_folder

TABLES = [*SLOTS.values(), FAMILIES, TASKS, OPTIMIZERS, SCHEDULES, POLICIES, METRICS]


@pytest.fixture(autouse=True)
def forget(monkeypatch) -> Iterator[None]:
    """Forget own code after each test."""
    before = [dict(table) for table in TABLES]
    monkeypatch.setattr(own_code, "state", own_code._State())
    yield
    as_new_process()
    for table, rows in zip(TABLES, before, strict=True):
        table.clear()
        table.update(rows)


def as_new_process() -> None:
    """Forget what is loaded, as a new process has."""
    for name in {*own_code.state.files, *TEXTS}:
        sys.modules.pop(Path(name).stem, None)
    own_code.state = own_code._State()
    PARTS.clear()
    TEXTS.clear()
    for table in TABLES:
        for name in [name for name, row in table.items() if row.source]:
            del table[name]
    run_folder._parsed_before.clear()
