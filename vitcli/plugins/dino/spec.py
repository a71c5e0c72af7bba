"""The spec of the task ``dino``."""

from typing import Annotated, Literal

from pydantic import Field

from vitcli.core.spec import DataSpec, ModelSpec, TrainSpec
from vitcli.core.spec.rows import Probability
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.views.spec import ViewsSpec, knn_accuracy

Temperature = Annotated[float, Field(gt=0, le=10)]


class DinoSpec(ViewsSpec):
    """DINO: a student predicts the output of its own moving average for other views."""

    name: Literal["dino"]
    num_prototypes: int = Field(1024, ge=2, le=1_000_000)
    """Number of outputs of the heads, over which the loss compares distributions."""
    hidden_dim: int = Field(512, ge=1, le=65536)
    """Hidden width of the heads."""
    bottleneck_dim: int = Field(128, ge=1, le=65536)
    """Width of the vectors that are compared with the prototypes."""
    head_norm: Literal["batch", "none"] = "none"
    """Norm in the hidden layers of the heads. ``batch`` learns faster in short trainings."""
    student_temperature: Temperature = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: Temperature = 0.04
    """Temperature of the teacher's softmax after the warm-up; lower is sharper."""
    warmup_teacher_temperature: Temperature = 0.04
    """Temperature of the teacher's softmax at the first step."""
    teacher_warmup_epochs: float = Field(0.0, ge=0, le=100_000)
    """Epochs of the linear change to ``teacher_temperature``; 0 has no warm-up."""
    teacher_momentum: Probability = 0.996
    """Share of the old teacher in an update at the first step; it rises to 1 in a half cosine."""
    center_momentum: Probability = 0.9
    """Share of the old centre in an update; 1 switches centring off."""
    freeze_prototypes_epochs: float = Field(1.0, ge=0, le=100_000)
    """Epochs at the start in which the prototypes are not trained."""

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        super().check(model, data, train)
        if train.ema_decay is not None:
            raise ValueError(
                "train.ema_decay: the teacher of dino is an average of the weights already"
                " (task.teacher_momentum); remove train.ema_decay"
            )


ROW = TaskRow(
    about="self-distillation between views of an image (DINO, Caron et al. 2021)",
    build="vitcli.plugins.dino.dino:Dino",
    spec=DinoSpec,
    headline=knn_accuracy,
    reports=("loss", "sample_entropy", "batch_entropy"),
    recorded=("knn_accuracy",),
    uses_labels=False,
)
