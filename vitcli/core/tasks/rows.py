"""The row of an experiment's task, which can be read without importing torch."""

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.tasks import ACCURACY, DEFAULT_TASK, TASKS, Metric, TaskRow

__all__ = ["ACCURACY", "DEFAULT_TASK", "TASKS", "Metric", "TaskRow", "task_row"]


def task_row(spec: ExperimentSpec) -> TaskRow:
    """Return the row of an experiment's task."""
    return TASKS[spec.task.name]
