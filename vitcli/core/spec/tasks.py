"""Training objectives: one table, and for each task a spec with its own fields."""

from dataclasses import dataclass
from typing import Literal

from vitcli.core.spec.base import Spec
from vitcli.core.spec.rows import SpecOf, SpecRow

DEFAULT_TASK = "classify"


class TaskSpec(Spec):
    """What every task has."""

    name: str
    """Training objective; it decides which other fields there are."""


class ClassifySpec(TaskSpec):
    """Supervised classification."""

    name: Literal["classify"] = "classify"


@dataclass(frozen=True, kw_only=True)
class TaskRow(SpecRow):
    """A training objective."""

    spec: type[TaskSpec]


TASKS: dict[str, TaskRow] = {
    "classify": TaskRow(
        about="supervised classification with cross-entropy",
        build="vitcli.core.tasks.classify:Classify",
        spec=ClassifySpec,
    ),
}

TASK = SpecOf(TASKS, "name", DEFAULT_TASK)
"""Annotates the task of an experiment."""
