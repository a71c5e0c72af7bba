"""From an experiment to the class of its task."""

from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.rows import task_row
from vitcli.core.tasks.target import load
from vitcli.core.tasks.task import Task


def task_class(spec: ExperimentSpec) -> type[Task]:
    """Return the class of an experiment's task."""
    found: type[Task] = load(task_row(spec).builds)
    return found
