"""The specs of the tasks ``multilabel`` and ``regress``."""

from typing import Literal

from vitcli.core.metric import Metric, error, percent
from vitcli.core.spec import DataSpec, ModelSpec, TaskSpec, TrainSpec
from vitcli.core.spec.task import TaskRow

mean_average_precision = percent(name="mean_average_precision", label="mAP", short="mAP")
"""Mean over the classes with an image of their average precision."""
micro_f1 = percent(name="micro_f1", label="micro-F1")
absolute_error = error(
    name="absolute_error",
    label="mean absolute error",
    short="MAE",
    condense="vitcli.plugins.targets.stored:condense",
    per_image="vitcli.plugins.targets.stored:errors",
)
"""In the unit of the targets, like ``rmse``."""
rmse = error(name="rmse", label="root mean squared error", short="RMSE")
r2 = Metric(name="r2", label="R2", short_digits=3)
"""1 minus the squared error by that of always answering the mean target of these images."""


class MultilabelSpec(TaskSpec):
    """Classification of images that have several labels, or none."""

    name: Literal["multilabel"] = "multilabel"


class RegressSpec(TaskSpec):
    """A number of each image, such as an age or a count."""

    name: Literal["regress"] = "regress"
    loss: Literal["squared", "absolute"] = "squared"
    """Loss of an image: the squared or the absolute error, by the standard deviation of the
    training targets. ``absolute`` learns the median, which wrong targets change less."""

    @property
    def extras(self) -> tuple[str, ...]:
        return ("target",)

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if data.augment.mixes:
            field = "mixup" if data.augment.mixup > 0 else "cutmix"
            raise ValueError(
                f"data.augment.{field}: no number describes a mixed image; set it to 0"
            )


MULTILABEL = TaskRow(
    about="classification of images with several labels or none: a sigmoid for each class",
    build="vitcli.plugins.targets.tasks:Multilabel",
    spec=MultilabelSpec,
    headline=mean_average_precision,
    recorded=("loss", "mean_average_precision"),
    answers=("labels", "probabilities"),
)
REGRESS = TaskRow(
    about="a number of each image, such as an age or a count",
    build="vitcli.plugins.targets.tasks:Regress",
    spec=RegressSpec,
    headline=absolute_error,
    recorded=("loss", "absolute_error", "rmse"),
    answers=("target",),
)
