"""The table of training objectives, their metrics, and the base of their specs.

The spec of an objective is in its room, ``core.objectives.NAME.spec``, and found through its row.
"""

from dataclasses import dataclass
from typing import Literal

from vitcli.core.spec.base import Spec
from vitcli.core.spec.data import DataSpec
from vitcli.core.spec.model import ModelSpec
from vitcli.core.spec.rows import SpecOf, SpecRow, Target
from vitcli.core.spec.train import TrainSpec


class TaskSpec(Spec):
    """Fields of every task."""

    name: str
    """Training objective; it determines the other fields."""

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        """Refuse a model, data or training that the task does not support.

        Raises:
            ValueError: The text begins with the field, such as ``model.pos_embed: ...``.
        """

    @property
    def compares_images(self) -> bool:
        """Return whether the loss compares the images of a batch with each other."""
        return False

    @property
    def extras(self) -> tuple[str, ...]:
        """Return the keys of ``Images.extra`` that the task needs from a folder of pictures."""
        return ()

    @property
    def row(self) -> "TaskRow":
        """Return the row of the task in ``TASKS``."""
        return TASKS[self.name]


class ClassifySpec(TaskSpec):
    """Supervised classification, which has no fields of its own."""

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

    def is_possible(self, value: float) -> bool:
        """Return whether a run can measure this value: a share lies between 0 and 1."""
        return self.unit != "%" or 0 <= value <= 1

    def is_better(self, value: float, other: float) -> bool:
        """Return whether ``value`` is better than ``other``."""
        return value > other if self.higher_is_better else value < other


ACCURACY = Metric(
    name="accuracy", label="accuracy", scale=100, unit="%", digits=2, short="acc", short_digits=1
)
KNN_ACCURACY = Metric(
    name="knn_accuracy",
    label="k-NN accuracy",
    scale=100,
    unit="%",
    digits=2,
    short="k-NN",
    short_digits=1,
)
"""Accuracy of ``core.inspect.probe.leave_one_out_knn`` on the features of a split."""

ZERO_SHOT_ACCURACY = Metric(
    name="zero_shot_accuracy",
    label="zero-shot accuracy",
    scale=100,
    unit="%",
    digits=2,
    short="zero-shot",
    short_digits=1,
)
"""Accuracy of classes that are given by name, with prompts that no training caption equals."""

MASKED_MSE = Metric(
    name="masked_mse", label="masked MSE", short="mse", short_digits=3, higher_is_better=False
)
"""Mean squared error of the reconstructed pixels in masked patches, in units of the normalised
pixels. The masks of an evaluation are always the same."""


@dataclass(frozen=True, kw_only=True)
class TaskRow(SpecRow):
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
    unprefixed: tuple[str, ...] = ()
    """Names of the numbers that result.json stores without the prefix ``test_``."""
    recompute: Target | None = None
    """A numpy function that recomputes the headline metric from the stored outputs."""
    condense: Target | None = None
    """A numpy function that reduces the stored outputs to a size that can be committed to git."""
    per_image: Target | None = None
    """A numpy function that returns, from stored or condensed outputs, the headline metric of each
    image, whose mean is the metric, and the labels or None."""

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
        build="vitcli.core.objectives.classify:Classify",
        spec=ClassifySpec,
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy"),
        classifies=True,
        unprefixed=("calibration_error",),
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
    "mae": TaskRow(
        about="masked autoencoder: reconstruct masked patches (He et al. 2022)",
        build="vitcli.core.objectives.mae.mae:Mae",
        spec="vitcli.core.objectives.mae.spec:MaeSpec",
        headline=MASKED_MSE,
        recorded=("masked_mse", "mse_ratio"),
        uses_labels=False,
        recompute="vitcli.core.objectives.predictions:masked_mse",
        condense="vitcli.core.objectives.predictions:condense_errors",
        per_image="vitcli.core.objectives.predictions:errors",
    ),
    "ssat": TaskRow(
        about="classify and reconstruct masked patches in one training (Das et al. 2024)",
        build="vitcli.core.objectives.ssat.ssat:Ssat",
        spec="vitcli.core.objectives.ssat.spec:SsatSpec",
        headline=ACCURACY,
        reports=("loss", "accuracy", "masked_mse"),
        recorded=("loss", "accuracy", "masked_mse", "mse_ratio"),
        classifies=True,
        unprefixed=("calibration_error",),
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
    "dino": TaskRow(
        about="self-distillation between views of an image (DINO, Caron et al. 2021)",
        build="vitcli.core.objectives.dino.dino:Dino",
        spec="vitcli.core.objectives.dino.spec:DinoSpec",
        headline=KNN_ACCURACY,
        reports=("loss", "sample_entropy", "batch_entropy"),
        recorded=("knn_accuracy",),
        uses_labels=False,
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
    "lejepa": TaskRow(
        about="equal, Gaussian embeddings of views (LeJEPA, Balestriero and LeCun 2025)",
        build="vitcli.core.objectives.lejepa.lejepa:Lejepa",
        spec="vitcli.core.objectives.lejepa.spec:LejepaSpec",
        headline=KNN_ACCURACY,
        reports=("loss", "invariance", "sigreg", "spread"),
        recorded=("knn_accuracy",),
        uses_labels=False,
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
    "clip": TaskRow(
        about="contrastive training of images with captions (Radford et al. 2021)",
        build="vitcli.core.objectives.clip.clip:ContrastiveTask",
        spec="vitcli.core.objectives.clip.spec:ClipSpec",
        headline=ZERO_SHOT_ACCURACY,
        reports=("loss", "floor", "scale"),
        recorded=(
            *("zero_shot_accuracy", "trained_prompts_accuracy"),
            *("image_to_text_r1", "text_to_image_r1"),
        ),
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
    "fusion": TaskRow(
        about="classification of an image together with a sound",
        build="vitcli.core.objectives.fusion.fusion:Fusion",
        spec="vitcli.core.objectives.fusion.spec:FusionSpec",
        headline=ACCURACY,
        reports=("loss", "accuracy"),
        recorded=("loss", "accuracy", "image_accuracy", "sound_accuracy"),
        unprefixed=("calibration_error",),
        recompute="vitcli.core.objectives.predictions:accuracy",
        condense="vitcli.core.objectives.predictions:condense",
        per_image="vitcli.core.objectives.predictions:correct",
    ),
}
"""The table of tasks by name."""

DEFAULT_TASK = "classify"
TASK = SpecOf(TASKS, "name", DEFAULT_TASK)
"""Annotation of the field that holds the task of an experiment."""
