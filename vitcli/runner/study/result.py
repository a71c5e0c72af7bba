"""What a study has found, as data: the schema of ``experiments/results/<study>.json``.

Everything that is shown of a study (table, figures, page, README) is a function of this document.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from vitcli.core.spec import Spec
from vitcli.core.tasks.rows import DEFAULT_TASK, TASKS, Metric

State = Literal["finished", "diverged", "failed", "interrupted", "running", "stale", "missing"]
"""Only ``finished`` has numbers; only ``finished`` and ``diverged`` are results."""


def as_tuple(value: Any) -> Any:
    """A list, such as JSON has it, as a tuple; anything else as it is."""
    return tuple(value) if isinstance(value, list) else value


def as_pairs(value: Any) -> Any:
    """A list of lists as a tuple of tuples; anything else as it is."""
    return tuple(as_tuple(pair) for pair in value) if isinstance(value, list) else value


class Numbers(Spec):
    """A record with fields for the numbers that most tasks have, and room for others."""

    measured: dict[str, float] = Field(default_factory=dict)
    """Numbers of a task that have no field of their own; left out of files where empty."""

    def number(self, name: str) -> float | None:
        """Return a number by its name in result.json."""
        found = self.measured.get(name)
        return getattr(self, name, None) if found is None else found

    @model_serializer(mode="wrap")
    def _without_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if not data.get("measured"):
            data.pop("measured", None)
        return data


def in_fields(kind: type[Numbers], numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return numbers as keywords of a record: each in its own field, else in ``measured``."""
    own = {name: value for name, value in numbers.items() if name in kind.model_fields}
    others = {name: value for name, value in numbers.items() if name not in own}
    return own | ({"measured": others} if others else {})


class TrialResult(Numbers):
    """One training of one variant with one seed."""

    seed: int
    state: State
    reason: str = ""
    """Why a trial failed, diverged or is stale."""
    config_hash: str
    epochs: int = 0
    """Epochs that were trained."""
    test_accuracy: float | None = None
    """Share of the test images, last epoch; every finished trial of a classifier has it."""
    test_loss: float | None = None
    train_loss: float | None = None
    train_seconds: float | None = None
    images_per_second: float | None = None
    curve: Annotated[tuple[tuple[int, float], ...], BeforeValidator(as_pairs)] = ()
    """(epoch, accuracy) after each evaluated epoch: of the validation split where there is one."""


class Candidate(Numbers):
    """One setting of a tuned variant and what it reached on the validation split."""

    setting: dict[str, Any]
    val_accuracy: float | None = None
    """Mean share over the seeds; None where a trial diverged or is not finished."""
    num_diverged: int = 0


class VariantResult(Spec):
    """One row: a variant and its trials, in the order of the study's seeds."""

    variant: str
    changes: dict[str, Any] = Field(default_factory=dict)
    """Dotted field -> value, against the baseline; an ``experiment`` entry names another file."""
    parameters: int | None = None
    forward_flops: int | None = None
    """Of one image, a multiply-add counted as two; None in older results."""
    trials: Annotated[tuple[TrialResult, ...], BeforeValidator(as_tuple)]
    candidates: Annotated[tuple[Candidate, ...], BeforeValidator(as_tuple)] = ()
    """Empty unless the study tunes; the trials above are those of ``chosen``."""
    chosen: dict[str, Any] | None = None
    """The setting with the best mean validation accuracy; None until every candidate is done."""


class ReferenceRow(Spec):
    """A source's numbers for one variant."""

    accuracy: float = Field(ge=0, le=100)
    """Percent."""
    parameters: float | None = Field(None, gt=0)
    hours: float | None = Field(None, gt=0)


class Reference(Spec):
    """What a source says, to be compared with."""

    source: str
    """Citation."""
    experiment: str | None = None
    """The experiment that is the source's own model and length."""
    rows: dict[str, ReferenceRow]


class StudyResult(Spec):
    """A whole study. The first row is the baseline; differences are taken from it."""

    name: str
    question: str = ""
    command: str
    """What to type to get it again."""
    commits: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """Commits of the code that trained the trials; more than one after an update in between."""
    dirty: bool = False
    date: str = ""
    """Day of the last trial, YYYY-MM-DD."""
    hardware: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    torch: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    precision: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    kernels: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """Whose kernels trained the trials: native, torch, or both."""
    inexact: Annotated[tuple[str, ...], BeforeValidator(as_tuple)] = ()
    """Trials that were continued under other circumstances, and so have other bits."""
    threads: int = 1
    """CPU threads of each trial."""
    data: str
    data_hash: str = ""
    num_train: int | None = None
    num_test: int | None = None
    epochs: int
    """Of the baseline."""
    num_comparisons: int
    """Variants of the study beside the baseline, shown or not; Holm's m."""
    base_config: dict[str, Any]
    """The baseline's fields that differ from vitcli's defaults, dotted."""
    reference: Reference | None = None
    task: str = DEFAULT_TASK
    """Row of the table of tasks; left out of files where it is the default."""
    same_setting: bool = False
    """Whether model, data and epochs are those of ``reference.experiment``."""
    rows: Annotated[tuple[VariantResult, ...], BeforeValidator(as_tuple)]

    @property
    def headline(self) -> Metric:
        """Return the number that the rows are compared by."""
        return TASKS[self.task].headline

    @model_serializer(mode="wrap")
    def _without_default_task(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if data.get("task") == DEFAULT_TASK:
            del data["task"]
        return data

    @property
    def compares_models(self) -> bool:
        """Whether the rows are different models, whose cost is part of the answer."""
        telling = {"experiment", "model.family", "model.attention"}
        return any(telling & row.changes.keys() for row in self.rows)
