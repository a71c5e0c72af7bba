"""The spec of the task ``clip``: contrastive training of images with captions."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitcli.core.metric import accuracy_of_outputs, percent
from vitcli.core.spec import DataSpec, ModelSpec, TaskSpec, TrainSpec
from vitcli.core.spec.rows import AcceptsList
from vitcli.core.spec.task import TaskRow

zero_shot_accuracy = accuracy_of_outputs(
    name="zero_shot_accuracy", label="zero-shot accuracy", short="zero-shot"
)
"""Accuracy of classes that are given by name, with prompts that no training caption equals."""
trained_prompts_accuracy = percent(
    name="trained_prompts_accuracy", label="accuracy with prompts of the training"
)
superclass_accuracy = percent(name="superclass_accuracy", label="accuracy of superclasses")
l2_superclass_accuracy = percent(
    name="l2_superclass_accuracy", label="accuracy of superclasses, unseen classes"
)
(
    l1_seen_pair_accuracy,
    l1_seen_class_accuracy,
    l1_seen_transformation_accuracy,
    l1_unseen_pair_accuracy,
    l1_unseen_class_accuracy,
    l1_unseen_transformation_accuracy,
) = (
    percent(name=f"l1_{seen}_{part}_accuracy", label=f"accuracy of the {part}, {seen} pairs")
    for seen in ("seen", "unseen")
    for part in ("pair", "class", "transformation")
)

CONTEXT_LENGTHS = {"words": 16, "bytes": 64}


class ClipSpec(TaskSpec):
    """Contrastive training of images with captions."""

    compares_images: ClassVar[bool] = True
    name: Literal["clip"] = "clip"
    captions: Literal["templates", "transformations", "superclasses", "folder"] = "templates"
    """Captions of the images. ``templates`` names the class. ``transformations`` changes each
    image, for example to grey, and names the change and the class. ``superclasses`` names the
    class, its superclass and relatives. ``folder`` reads captions.csv of ``imagefolder:PATH``."""
    tokenizer: Literal["words", "bytes"] = "words"
    """Tokens of a caption: words of a vocabulary, or UTF-8 bytes."""
    vocabulary_size: int = Field(4096, ge=8, le=1_000_000)
    """Largest number of tokens of ``words`` with captions from a folder; the most frequent words
    are kept. Generated captions keep all their words."""
    context_length: int | None = Field(None, ge=4, le=1024)
    """Tokens of a caption, with start and end; longer captions are cut. Unset uses 16 words or 64
    bytes."""
    text_dim: int = Field(64, ge=8, le=4096)
    """Width of the text encoder."""
    text_depth: int = Field(2, ge=1, le=64)
    """Number of blocks of the text encoder."""
    text_heads: int = Field(2, ge=1, le=64)
    """Number of attention heads of the text encoder."""
    joint_dim: int = Field(64, ge=2, le=4096)
    """Width of the space in which images and captions are compared."""
    held_out_classes: Annotated[tuple[str, ...], AcceptsList] = ()
    """Classes whose images are not trained on (``superclasses`` only). Their words occur in
    captions of their relatives."""

    @property
    def extras(self) -> tuple[str, ...]:
        return ("caption",) if self.captions == "folder" else ()

    @property
    def length(self) -> int:
        return self.context_length or CONTEXT_LENGTHS[self.tokenizer]

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if self.text_dim % self.text_heads:
            raise ValueError(
                f"text_heads {self.text_heads} does not divide text_dim {self.text_dim}"
            )
        if self.held_out_classes and self.captions != "superclasses":
            raise ValueError(
                f"held_out_classes needs captions 'superclasses', not {self.captions!r}"
            )
        return self

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if data.augment.mixes:
            field = "mixup" if data.augment.mixup > 0 else "cutmix"
            raise ValueError(
                f"data.augment.{field}: no caption describes a mixed image; set it to 0"
            )
        if self.captions == "folder" and not data.name.startswith("imagefolder:"):
            raise ValueError(
                f"task.captions: 'folder' reads captions.csv of imagefolder:PATH, and data.name is"
                f" {data.name!r}"
            )
        unknown = sorted({*self.held_out_classes} - {*(data.class_names or ())})
        if data.class_names and unknown:
            raise ValueError(
                f"task.held_out_classes: {unknown[0]!r} is not one of {', '.join(data.class_names)}"
            )
        if data.class_names and {*self.held_out_classes} == {*data.class_names}:
            raise ValueError("task.held_out_classes: no class is left to train on")


ROW = TaskRow(
    about="contrastive training of images with captions (Radford et al. 2021)",
    build="vitcli.plugins.clip.clip:ContrastiveTask",
    spec=ClipSpec,
    headline=zero_shot_accuracy,
    reports=("loss", "floor", "scale"),
    recorded=(
        *("zero_shot_accuracy", "trained_prompts_accuracy"),
        *("image_to_text_r1", "text_to_image_r1"),
    ),
)
