"""Fields of every task that compares views of an image."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from vitcli.core.metric import accuracy_of_outputs
from vitcli.core.spec import AugmentSpec, DataSpec, ModelSpec, PatchSpec, TaskSpec, TrainSpec
from vitcli.core.spec.rows import AcceptsList, Probability

knn_accuracy = accuracy_of_outputs(name="knn_accuracy", label="k-NN accuracy", short="k-NN")
"""Accuracy of ``core.metrics.knn.leave_one_out_knn`` on the features of a split."""

Area = Annotated[float, Field(gt=0, le=1)]
Areas = Annotated[tuple[Area, Area], AcceptsList]


class ViewsSpec(TaskSpec):
    """Random views of an image: large global crops, and smaller local crops."""

    compares_images: ClassVar[bool] = True
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
