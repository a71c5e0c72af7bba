"""Training objectives: one table, and for each task a spec with its own fields."""

from dataclasses import dataclass
from typing import Literal

from vitcli.core.spec.base import Spec
from vitcli.core.spec.rows import SpecOf, SpecRow, Target

DEFAULT_TASK = "classify"


class TaskSpec(Spec):
    """What every task has."""

    name: str
    """Training objective; it decides which other fields there are."""


class ClassifySpec(TaskSpec):
    """Supervised classification."""

    name: Literal["classify"] = "classify"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a task measures, and how it is written."""

    name: str
    """``test_<name>`` and ``val_<name>`` in files."""
    label: str
    scale: float = 1.0
    """Factor between the stored and the written number; 100 for a share in percent."""
    unit: str = ""
    digits: int = 4
    short: str = ""
    """The label where there is little room; the label itself unless given."""
    short_digits: int | None = None
    """Digits of a line about one epoch; ``digits`` unless given."""
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        """Return the label with the unit, such as ``accuracy, %``."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def difference_unit(self) -> str:
        """Return the unit of a difference: of two percentages, percentage points."""
        return "percentage points" if self.unit == "%" else self.unit or f"units of {self.label}"

    def text(self, value: float, digits: int | None = None) -> str:
        """Return the value as it is written, such as ``71.51 %``."""
        number = f"{self.scale * value:.{self.digits if digits is None else digits}f}"
        return f"{number} {self.unit}" if self.unit else number

    def is_better(self, value: float, other: float) -> bool:
        """Return whether ``value`` beats ``other``."""
        return value > other if self.higher_is_better else value < other


ACCURACY = Metric(
    name="accuracy", label="accuracy", scale=100, unit="%", digits=2, short="acc", short_digits=1
)


@dataclass(frozen=True, kw_only=True)
class TaskRow(SpecRow):
    """One objective; ``build`` is a subclass of ``core.tasks.task.Task``."""

    spec: type[TaskSpec]
    headline: Metric
    """The number that tables compare and that chooses the best checkpoint."""
    reports: tuple[str, ...] = ("loss",)
    """What ``Task.losses`` returns; each is averaged over an epoch."""
    recorded: tuple[str, ...] = ("loss",)
    """What ``Task.measure`` returns and metrics.jsonl records after an epoch."""
    classifies: bool = False
    """Whether the encoder gives class logits, so that single pictures can be classified."""
    unprefixed: tuple[str, ...] = ()
    """What result.json stores without the prefix ``test_``."""
    recompute: Target | None = None
    """A numpy function that recomputes the headline from the stored outputs."""
    condense: Target | None = None
    """A numpy function that makes the stored outputs small enough to commit."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the names of the headline and of every number that is recorded."""
        return tuple(dict.fromkeys([self.headline.name, *self.recorded]))


TASKS: dict[str, TaskRow] = {
    "classify": TaskRow(
        about="supervised classification with cross-entropy",
        build="vitcli.core.tasks.classify:Classify",
        spec=ClassifySpec,
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy"),
        classifies=True,
        unprefixed=("calibration_error",),
        recompute="vitcli.core.tasks.predictions:accuracy",
        condense="vitcli.core.tasks.predictions:condense",
    )
}

TASK = SpecOf(TASKS, "name", DEFAULT_TASK)
"""Annotates the task of an experiment."""
