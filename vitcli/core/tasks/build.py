"""The class of an experiment's task."""

from vitcli.core.make import load_target
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.task import Task


def task_class(spec: ExperimentSpec) -> type[Task]:
    """Return the class of an experiment's task."""
    found: type[Task] = load_target(spec.task.row.build)
    return found
