"""The table of training objectives, and one spec class with the fields of each task."""

from dataclasses import dataclass
from typing import Literal

from vitcli.core.spec.base import Spec
from vitcli.core.spec.rows import SpecOf, SpecRow, Target

DEFAULT_TASK = "classify"


class TaskSpec(Spec):
    """Fields of every task."""

    name: str
    """Training objective; it determines the other fields."""

    @property
    def row(self) -> "TaskRow":
        """Return the row of the task in ``TASKS``."""
        return TASKS[self.name]


class ClassifySpec(TaskSpec):
    """Supervised classification."""

    name: Literal["classify"] = "classify"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a task measures, and its format in texts and tables."""

    name: str
    """Name in files, after the prefix ``test_`` or ``val_``."""
    label: str
    """Name in texts and tables."""
    scale: float = 1.0
    """Factor from the stored number to the displayed number; 100 for percent."""
    unit: str = ""
    digits: int = 4
    """Number of decimal places."""
    short: str = ""
    """Short label for narrow places; ``label`` is used if empty."""
    short_digits: int | None = None
    """Number of decimal places in the line of an epoch; ``digits`` if None."""
    higher_is_better: bool = True

    @property
    def title(self) -> str:
        """Return the label with the unit, such as ``accuracy, %``."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def difference_unit(self) -> str:
        """Return the unit of a difference between two values; for percent, percentage points."""
        return "percentage points" if self.unit == "%" else self.unit or f"units of {self.label}"

    def text(self, value: float, digits: int | None = None) -> str:
        """Return the value as displayed text, such as ``71.51 %``."""
        number = f"{self.scale * value:.{self.digits if digits is None else digits}f}"
        return f"{number} {self.unit}" if self.unit else number

    def is_better(self, value: float, other: float) -> bool:
        """Return whether ``value`` is better than ``other``."""
        return value > other if self.higher_is_better else value < other


ACCURACY = Metric(
    name="accuracy", label="accuracy", scale=100, unit="%", digits=2, short="acc", short_digits=1
)


@dataclass(frozen=True, kw_only=True)
class TaskRow(SpecRow):
    """A training objective. ``build`` is a subclass of ``core.tasks.task.Task``."""

    spec: type[TaskSpec]
    headline: Metric
    """Metric that tables compare and that selects the best checkpoint."""
    reports: tuple[str, ...] = ("loss",)
    """Names of the numbers that ``Task.losses`` returns. Each number is averaged over an epoch."""
    recorded: tuple[str, ...] = ("loss",)
    """Names of the numbers that ``Task.measure`` returns and metrics.jsonl records."""
    classifies: bool = False
    """Whether the encoder returns class logits, so that it can classify single pictures."""
    unprefixed: tuple[str, ...] = ()
    """Names of the numbers that result.json stores without the prefix ``test_``."""
    recompute: Target | None = None
    """A numpy function that recomputes the headline metric from the stored outputs."""
    condense: Target | None = None
    """A numpy function that reduces the stored outputs to a size that can be committed to git."""

    def __post_init__(self) -> None:
        if "loss" not in self.reports:
            raise ValueError("the reports of a task contain 'loss', the number that is minimised")

    @property
    def numbers(self) -> tuple[str, ...]:
        """Return the names of the headline metric and of all recorded numbers."""
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
"""Annotation of the field that holds the task of an experiment."""
