"""The spec of the task ``fusion``: classification of an image together with a sound."""

from typing import Annotated, Literal

from pydantic import Field

from vitcli.core.metric import ACCURACY, percent
from vitcli.core.spec import DATA_SETS, DataSpec, ModelSpec, TaskSpec, TrainSpec
from vitcli.core.spec.rows import Rate, Row, RowOf
from vitcli.core.spec.task import TaskRow

image_accuracy = percent(name="image_accuracy", label="accuracy with the image alone")
sound_accuracy = percent(name="sound_accuracy", label="accuracy with the sound alone")

FUSIONS: dict[str, Row] = {
    "early": Row(
        about="the patches of both pass through the same blocks together",
        build="vitcli.plugins.fusion.fusion:EarlyFusion",
    ),
    "late": Row(
        about="an encoder for each; a linear head on both features",
        build="vitcli.plugins.fusion.fusion:LateFusion",
    ),
    "cross": Row(
        about="an encoder for each; then the tokens of each attend to those of the other",
        build="vitcli.plugins.fusion.fusion:CrossFusion",
    ),
}
"""How image and sound are joined."""


class FusionSpec(TaskSpec):
    """Classification of an image together with a sound."""

    name: Literal["fusion"] = "fusion"
    fusion: Annotated[str, RowOf(FUSIONS)] = "early"
    """How image and sound are joined."""
    modalities: Literal["both", "image", "sound"] = "both"
    """What the training sees. ``image`` and ``sound`` train a baseline with one modality."""
    sound: Literal["synthetic", "folder"] = "synthetic"
    """Sounds: ``synthetic`` generates one for each image, ``folder`` reads NAME.wav beside each
    picture NAME.png."""
    sound_patch_size: Literal[2, 4, 8, 16] = 4
    """Side of a square patch of the 32x32 spectrogram."""
    modality_dropout: Rate = 0.0
    """Share of each training batch that is seen without its sound or without its image, half of it
    each; 0 drops nothing."""
    image_noise: float = Field(0.0, ge=0, le=100)
    """Standard deviation of white noise that is added to the normalised images, in training and
    evaluation."""
    sound_noise: float = Field(0.0, ge=0, le=100)
    """Standard deviation of white noise that is added to the sounds, relative to their root mean
    square."""
    shuffle_sounds: bool = False
    """Give each image the sound of a random image. A control: fusion must not gain from sounds."""
    unimodal: float = Field(0.0, ge=0, le=100)
    """Weight of the losses of each modality alone, of the same forward pass; 0 has none. Without
    them the modality that is learned first slows the other one down. ``early`` has none."""
    contrast: float = Field(0.0, ge=0, le=100)
    """Weight of a contrastive loss between the features of images and sounds; 0 has none.
    ``early`` has no separate features."""

    @property
    def extras(self) -> tuple[str, ...]:
        return ("sound",) if self.sound == "folder" else ()

    @property
    def compares_images(self) -> bool:
        return self.contrast > 0

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if model.family != "vit":
            raise ValueError(
                f"model.family: task 'fusion' needs family 'vit', not {model.family!r}"
            )
        if self.fusion == "early" and model.no_other_grid:
            raise ValueError(
                f"task.fusion: {model.no_other_grid}, and 'early' adds those of a sound;"
                " take 'late' or 'cross'"
            )
        for name in ("contrast", "unimodal"):
            if getattr(self, name) and self.fusion == "early":
                raise ValueError(f"task.{name}: 'early' has no separate features; take 'late'")
        for name in ("contrast", "unimodal", "modality_dropout"):
            if getattr(self, name) and self.modalities != "both":
                raise ValueError(f"task.{name}: needs both modalities; set it to 0")
        if self.sound == "folder" and data.name in DATA_SETS:
            raise ValueError(f"task.sound: {data.name} has no sounds; take 'synthetic'")
        if self.modality_dropout and not self.num_alone(train.batch_size // train.accumulate):
            raise ValueError(
                f"task.modality_dropout: {self.modality_dropout} of a batch of"
                f" {train.batch_size // train.accumulate} images is less than one image of each"
                " kind; use larger batches"
            )

    def num_alone(self, batch_size: int) -> int:
        """Return how many images of a batch are seen without sound, and sounds without image."""
        return min(round(self.modality_dropout / 2 * batch_size), (batch_size - 1) // 2)


ROW = TaskRow(
    about="classification of an image together with a sound",
    build="vitcli.plugins.fusion.fusion:Fusion",
    spec=FusionSpec,
    headline=ACCURACY,
    reports=("loss", "accuracy"),
    recorded=("loss", "accuracy", "image_accuracy", "sound_accuracy"),
)
