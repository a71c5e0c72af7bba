"""Write the table of all choices for models, optimisers and tasks as Markdown."""

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
    """Return the table of rows of each field of an experiment."""
    found: dict[str, Table] = {"model.family": FAMILIES}
    found |= {f"model.{field}": table for field, table in SLOTS.items()}
    return found | {"optim.name": OPTIMIZERS, "optim.schedule": SCHEDULES, "task.name": TASKS}


def cost(row: Row) -> str:
    """Return the stated cost of a row, or an empty text."""
    if isinstance(row, AttentionRow):
        return f"time {row.time}, memory {row.memory}"
    if isinstance(row, OptimizerRow):
        return f"state of {row.state_copies:g} x the parameters"
    return ""


def lines() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| field | name | what it is | stated cost |"
    yield "|---|---|---|---|"
    for field, table in tables().items():
        for name, row in table.items():
            yield f"| `{field}` | `{name}` | {row.about} | {cost(row)} |"


def slots() -> str:
    """Return the table of all choices by field, with their stated costs."""
    return "\n".join(lines())


if __name__ == "__main__":
    sys.stdout.write(f"{slots()}\n")
