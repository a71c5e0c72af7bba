"""The table of training objectives, and the base of their specs.

The spec of an objective is in its plugin, ``vitcli.plugins.NAME.spec``, and found through its row.
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from vitcli.core.metric import ACCURACY, METRICS, Metric
from vitcli.core.spec import rows
from vitcli.core.spec.data import DataSpec
from vitcli.core.spec.families import FAMILY
from vitcli.core.spec.model import ModelSpec
from vitcli.core.spec.train import TrainSpec
from vitcli.plugin import Registry


class TaskSpec(rows.Spec):
    """Fields of every task."""

    name: str
    """Training objective; it determines the other fields."""

    has_teacher: ClassVar[bool] = False
    """Whether a trained model teaches."""

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        """Refuse what the task does not support: ValueError("model.pos_embed: ...")."""

    @property
    def compares_images(self) -> bool:
        """Return whether the loss compares the images of a batch with each other."""
        return False

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the keys of ``Images.extra`` that the task needs from a folder of pictures."""
        return ()

    @property
    def taught_by(self) -> "TeacherSpec | None":
        return None

    @property
    def row(self) -> "TaskRow":
        return TASKS[self.name]


class TeacherSpec(rows.Spec):
    """A trained model whose outputs another model imitates. vitcli fills in all but ``run``."""

    derived: ClassVar = ("model", "class_names", "mean", "std", "code")
    """Fields that follow from the weights, so that comparisons leave them out."""

    run: str = ""
    """Run or bundled model whose last weights teach, with the average of weights if it has one.
    ``{seed}`` in it stands for the seed of the student."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the teacher's weights. A training with other weights is refused."""
    model: Annotated[ModelSpec, FAMILY] | None = None
    """Architecture of the teacher; until it is known, that of the student."""
    class_names: Annotated[tuple[str, ...], rows.AcceptsList] | None = None
    """Names of the teacher's classes; empty if it was not trained to classify."""
    mean: rows.Channels | None = None
    """Mean of each channel of the images that the teacher was trained on."""
    std: rows.Channels | None = None
    """Standard deviation of each channel of these images."""
    code: rows.FrozenMapping = Field(default_factory=rows.Frozen)
    """Own code of the teacher's model: name of a file -> its SHA-256. Only a training needs it."""

    def run_for(self, seed: int) -> str:
        return self.run.replace("{seed}", str(seed))


class ClassifySpec(TaskSpec):
    """Supervised classification."""

    name: Literal["classify"] = "classify"
    headline: Literal["accuracy", "balanced_accuracy", "macro_f1"] = "accuracy"
    """Metric that selects the best checkpoint, stops early and is shown first. With unequal
    classes, accuracy mostly measures the large ones. Studies and searches compare the accuracy."""

    @property
    def row(self) -> "TaskRow":
        row = TASKS[self.name]
        if self.headline == row.headline.name:
            return row
        recorded = (*row.recorded, self.headline)
        return replace(row, headline=METRICS[self.headline], recorded=recorded)


@dataclass(frozen=True, kw_only=True)
class TaskRow(rows.SpecRow):
    """A training objective. ``build`` is a subclass of ``core.objectives.objective.Task``."""

    spec: type[TaskSpec] | str
    headline: Metric
    """Metric that tables compare and that selects the best checkpoint."""
    reports: tuple[str, ...] = ("loss",)
    """Names of the numbers that ``Task.losses`` returns. Each number is averaged over an epoch."""
    recorded: tuple[str, ...] = ("loss",)
    """Names of the numbers that ``Task.measure`` returns and metrics.jsonl records."""
    uses_labels: bool = True
    """Whether the training reads the labels of the images."""
    classifies: bool = False
    """Whether the encoder returns class logits, so that it can classify single pictures."""
    answers: tuple[str, ...] = ()
    """Names of what ``Task.answers`` says of a picture, without one likeliest class. The outputs of
    the encoder then have the names of the classes, too."""

    def __post_init__(self) -> None:
        if "loss" not in self.reports:
            raise ValueError("the reports of a task contain 'loss', the number that is minimised")
        if taken := {"grad_norm", "skipped_steps", "seconds", "flops"}.intersection(self.reports):
            raise ValueError(f"every training records its own {min(taken)!r}; rename the report")

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([self.headline.name, *self.recorded]))


TASKS = Registry[TaskRow]("task.name")
TASKS |= {
    "classify": TaskRow(
        about="supervised classification with cross-entropy",
        build="vitcli.core.objectives.classify:Classify",
        spec=ClassifySpec,
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy"),
        classifies=True,
    )
}
"""The table of tasks by name."""

DEFAULT_TASK = "classify"
TASK = rows.SpecOf(TASKS, "name", DEFAULT_TASK)
"""Annotation of the field that holds the task of an experiment."""
