"""The table of everything that a model, an optimiser and a task can be made of, as Markdown."""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS  # noqa: E402
from vitcli.core.spec.optim import OptimizerRow  # noqa: E402
from vitcli.core.spec.rows import Row, Table  # noqa: E402
from vitcli.core.spec.slots import SLOTS, AttentionRow  # noqa: E402


def tables() -> dict[str, Table]:
    """Field of an experiment -> the table of the names that it takes."""
    found: dict[str, Table] = {"model.family": FAMILIES}
    found |= {f"model.{field}": table for field, table in SLOTS.items()}
    return found | {"optim.name": OPTIMIZERS, "optim.schedule": SCHEDULES, "task.name": TASKS}


def cost(row: Row) -> str:
    """The cost that a row states, if it states any."""
    if isinstance(row, AttentionRow):
        return f"time {row.time}, memory {row.memory}"
    if isinstance(row, OptimizerRow):
        return f"state of {row.state_copies:g} x the parameters"
    return ""


def lines() -> Iterator[str]:
    yield "| field | name | what it is | stated cost |"
    yield "|---|---|---|---|"
    for field, table in tables().items():
        for name, row in table.items():
            yield f"| `{field}` | `{name}` | {row.about} | {cost(row)} |"


def slots() -> str:
    """Return the table: every choice by its field, with the cost that it states."""
    return "\n".join(lines())


if __name__ == "__main__":
    sys.stdout.write(f"{slots()}\n")
