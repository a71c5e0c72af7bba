"""The table of all choices for models, optimisers and tasks."""

from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS
from vitcli.core.spec.optim import OptimizerRow
from vitcli.core.spec.rows import Row, Table
from vitcli.core.spec.slots import SLOTS, AttentionRow
from vitcli.runner.report.tables import markdown_grid


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


def slots() -> str:
    """Return the table of all choices by field, with their stated costs."""
    rows = [
        [f"`{field}`", f"`{name}`", row.about, cost(row)]
        for field, table in tables().items()
        for name, row in table.items()
    ]
    return markdown_grid(["field", "name", "what it is", "stated cost"], rows)
