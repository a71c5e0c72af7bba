"""Objectives from a user's own code: a loss function, or a class."""

from operator import attrgetter
from typing import Any, ClassVar, get_type_hints

from torch import Tensor

from vitcli.core.objectives.classify import Classify
from vitcli.core.objectives.objective import Task
from vitcli.core.spec import TaskSpec
from vitcli.core.spec.own import checked_options, options_of_signature


class OwnTaskSpec(TaskSpec):
    """Fields of every objective from own code."""

    is_own: ClassVar[bool] = True

    def check(self, model: Any, data: Any, train: Any) -> None:
        if train.label_smoothing:
            raise ValueError(
                "train.label_smoothing: your own objective does not read it; set it to 0"
            )


TAKEN = {"name", *dir(OwnTaskSpec)}


def is_ours(kind: type) -> bool:
    """Return whether vitcli or Python defines a class, whose annotations are no options."""
    return kind.__module__.partition(".")[0] in ("vitcli", "builtins", "abc")


def task_of(build: Any) -> tuple[type[Task], dict[str, Any]]:
    """Return the class of an objective, and its options: name -> (type, default)."""
    if isinstance(build, type):
        hints = get_type_hints(build, include_extras=True)
        kinds = [kind for kind in reversed(build.__mro__) if not is_ours(kind)]
        annotated = {
            name: hints[name] for kind in kinds for name in vars(kind).get("__annotations__", {})
        }
        fields = {name: (kind, getattr(build, name, ...)) for name, kind in annotated.items()}
        methods = {name for kind in build.__mro__ if is_ours(kind) for name in vars(kind)}
        fields = checked_options(build.__name__, fields, TAKEN | methods)
        for name in fields:  # an attribute of the instance is the value in the experiment
            setattr(build, name, property(attrgetter(f"spec.task.{name}")))
        return build, fields
    options = options_of_signature(build, 2, taken=TAKEN)

    class OwnLoss(Classify):
        minimises_cross_entropy = False

        def class_losses(
            self, logits: Tensor, targets: Tensor, weights: Tensor | None = None
        ) -> dict[str, Tensor]:
            given = {name: getattr(self.spec.task, name) for name in options}
            return super().class_losses(logits, targets) | {"loss": build(logits, targets, **given)}

    return OwnLoss, options
