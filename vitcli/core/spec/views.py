"""The tasks that compare views of an image, and the fields of the views."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vitcli.core.spec.base import AcceptsList, Probability
from vitcli.core.spec.data import AugmentSpec, DataSpec
from vitcli.core.spec.model import ModelSpec, PatchSpec
from vitcli.core.spec.task import TaskSpec
from vitcli.core.spec.train import TrainSpec

Area = Annotated[float, Field(gt=0, le=1)]
Areas = Annotated[tuple[Area, Area], AcceptsList]
Temperature = Annotated[float, Field(gt=0, le=10)]


class ViewsSpec(TaskSpec):
    """Random views of an image: large global crops, and smaller local crops."""

    num_global: int = Field(2, ge=2, le=16)
    """Number of global crops of each image."""
    global_size: int | None = Field(None, ge=1, le=1024)
    """Side of a global crop in pixels; unset uses the size of the image. The patch size must
    divide it."""
    num_local: int = Field(2, ge=0, le=32)
    """Number of local crops of each image; 0 uses global crops only."""
    local_size: int = Field(16, ge=1, le=1024)
    """Side of a local crop in pixels. The patch size must divide it."""
    global_scale: Areas = (0.4, 1.0)
    """Smallest and largest share of the image's area in a global crop."""
    local_scale: Areas = (0.1, 0.4)
    """Smallest and largest share of the image's area in a local crop."""
    flip: Probability = 0.5
    """Probability that a view is the mirror image."""
    jitter: Probability = 0.8
    """Probability of colour jitter: random brightness, contrast, saturation and hue."""
    gray: Probability = 0.2
    """Probability that a view has no colours."""
    color_mix: Probability = 0.0
    """Probability that a view's colours are replaced by random mixtures of its colours."""
    blur: Probability = 0.0
    """Probability that a view is blurred."""
    solarize: Probability = 0.2
    """Probability that light pixels are inverted; only in the second global crop."""

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if data.augment != AugmentSpec():
            raise ValueError(
                f"data.augment: {self.name} makes its own views (task.jitter, task.flip ...);"
                " remove data.augment"
            )
        if train.accumulate > 1:
            raise ValueError(
                f"train.accumulate: {self.name} compares the images of a whole batch;"
                " set train.accumulate to 1"
            )
        if self.num_local:
            self._check_size("local_size", self.local_size, "num_local to 0", model)
        if self.global_size is not None:
            self._check_size("global_size", self.global_size, "global_size to null", model)

    def _check_size(self, name: str, size: int, remedy: str, model: ModelSpec) -> None:
        if model.no_other_grid:
            raise ValueError(
                f"task.{name}: the model takes no crops of another size: {model.no_other_grid};"
                f" set task.{remedy}"
            )
        if isinstance(model, PatchSpec) and size % model.patch_size:
            raise ValueError(
                f"task.{name}: the patch size {model.patch_size} does not divide {size}"
            )

    @model_validator(mode="after")
    def _check_scales(self) -> Self:
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: the smallest area {low} is above the largest {high}")
        return self


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


class LejepaSpec(ViewsSpec):
    """LeJEPA: views of an image have equal embeddings, and all embeddings form a Gaussian."""

    name: Literal["lejepa"]
    sigreg_weight: Probability = 0.05
    """Weight of the regulariser SIGReg; the invariance has the rest of the weight."""
    num_slices: int = Field(256, ge=1, le=65536)
    """Number of random directions of SIGReg at each step."""
    proj_dim: int = Field(32, ge=1, le=65536)
    """Width of the embeddings that are compared."""
    hidden_dim: int = Field(512, ge=1, le=65536)
    """Hidden width of the projection head."""
