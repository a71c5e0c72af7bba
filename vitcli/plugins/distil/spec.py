"""The spec of the task ``distil``."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from vitcli.core.metric import ACCURACY
from vitcli.core.spec import DataSpec, ModelSpec, TaskSpec, TrainSpec, VitSpec
from vitcli.core.spec.rows import AcceptsList, Probability
from vitcli.core.spec.task import TaskRow, TeacherSpec


def _named(value: Any) -> Any:
    if value is not None and not isinstance(value, (str, dict, TeacherSpec)):
        raise ValueError(f"must name a run, got {value!r}")
    return {"run": value} if isinstance(value, str) else value


class DistilSpec(TaskSpec):
    """Classification that also learns from a trained model, the teacher."""

    has_teacher: ClassVar[bool] = True

    name: Literal["distil"] = "distil"
    teacher: Annotated[TeacherSpec | None, BeforeValidator(_named)] = None
    """Run folder, name under runs/ or bundled model that teaches. A training needs it."""
    kind: Literal["logits", "token", "features"] = "logits"
    """What the student learns from: ``logits`` are the teacher's class probabilities (Hinton et
    al. 2015); ``token`` are its most likely classes, for a distillation token with a head of its
    own (DeiT, Touvron et al. 2021); ``features`` are its feature maps (Li et al. 2022)."""
    temperature: float = Field(4.0, gt=0, le=1000)
    """Divisor of the logits of teacher and student (kind ``logits`` only)."""
    standardize: bool = False
    """Divide the logits by their standard deviation over the classes, after subtracting their mean,
    so that their size does not count (Sun et al. 2024; kind ``logits`` only)."""
    share: Probability = 0.5
    """Share of the teacher in the loss; the labels have the rest of 1 (not for ``features``)."""
    feature_weight: float = Field(2.5, ge=0, le=1e6)
    """Factor of the error of the feature maps, which is added to the loss (``features`` only)."""
    layers: Annotated[tuple[Annotated[int, Field(ge=1)], ...], AcceptsList] = ()
    """Blocks of the student, counted from 1, whose patches imitate feature maps (``features``
    only)."""
    teacher_layers: Annotated[tuple[str, ...], AcceptsList] = ()
    """Part of the teacher that each of ``layers`` imitates, such as stages.1 or blocks.3."""

    @property
    def taught_by(self) -> TeacherSpec | None:
        return self.teacher

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        used = {
            "logits": ("temperature", "standardize", "share"),
            "token": ("share",),
            "features": ("feature_weight", "layers", "teacher_layers"),
        }
        every = dict.fromkeys(name for names in used.values() for name in names)
        for field in (name for name in every if name not in used[self.kind]):
            if getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"kind {self.kind!r} does not read {field}; remove it")
        if self.kind == "features" and not self.layers:
            raise ValueError("kind 'features' needs layers and teacher_layers")
        if len(self.layers) != len(self.teacher_layers):
            raise ValueError(
                f"each layer imitates one of the teacher: layers has {len(self.layers)},"
                f" teacher_layers {len(self.teacher_layers)}"
            )
        return self

    def check(self, model: ModelSpec, data: DataSpec, train: TrainSpec) -> None:
        if self.kind == "logits":
            return
        if not isinstance(model, VitSpec):
            raise ValueError(f"model.family: task.kind {self.kind!r} needs family 'vit'")
        if self.kind == "token" and not model.reg_tokens:
            raise ValueError(
                "model.reg_tokens: the first one is the distillation token; set it to 1"
            )
        if max(self.layers, default=0) > model.depth:
            raise ValueError(f"task.layers: the student has only {model.depth} blocks")


ROW = TaskRow(
    about="classify and imitate a trained model, the teacher (Hinton et al. 2015)",
    build="vitcli.plugins.distil.distil:Distil",
    spec=DistilSpec,
    headline=ACCURACY,
    reports=("loss", "accuracy", "distillation"),
    recorded=("loss", "accuracy"),
    classifies=True,
)
