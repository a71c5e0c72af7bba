"""The floating-point operations of a training."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitcli.core.data.batches import num_batches
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.optim import freeze
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_copy, abstract_module

FIELDS: dict[str, Any] = {
    "model": True,
    "task": True,
    "train": {"batch_size", "accumulate", "freeze", "grad_checkpointing"},
}
"""Fields on which the operations depend."""
_counted: dict[tuple[object, ...], "Operations"] = {}
"""Such fields as text, and the shapes of a batch -> operations."""


@dataclass(frozen=True, kw_only=True)
class Operations:
    """The floating-point operations of an experiment."""

    forward: int
    """Of the forward pass of one image through the encoder."""
    step: int
    """Of a step on a batch, forward and backward, with those of a teacher that it calls."""
    teacher: int
    """Of a teacher's forward pass of one image; 0 without a teacher."""
    copies: int | None
    """Number of copies of each image that the teacher labels before the steps; None if it is called
    in each step."""
    batch_size: int

    def of_steps(self, num_steps: int, num_train: int) -> tuple[int, int]:
        """Return the operations of a number of steps, and those of the teacher in them."""
        if self.copies is None:
            return num_steps * self.step, num_steps * self.batch_size * self.teacher
        epochs = math.ceil(num_steps / num_batches(num_train, self.batch_size))
        taught = self.teacher * num_train * min(self.copies, epochs)
        return num_steps * self.step + taught, taught


def count_operations(
    spec: ExperimentSpec, batch: dict[str, Tensor], module: nn.Module | None = None
) -> Operations:
    """Return the operations of an experiment whose batches have these shapes.

    With gradient checkpointing, the recomputed operations of a step are counted again. What is
    frozen below all that is trained needs no backward pass. ``module`` is what the experiment
    trains, if that is at hand; it stays as it is.

    Counting takes longer than a tiny training, so it is done once in a process, but each time with
    own code, which a notebook may change.
    """
    shapes = ((name, value.shape) for name, value in batch.items())
    key = (spec.model_dump_json(include=FIELDS), *shapes)
    if key in _counted and not spec.code:
        return _counted[key]
    is_at_hand = module is not None and not spec.code
    abstract = abstract_copy(module) if module and is_at_hand else abstract_module(spec)
    task = task_class(spec)(spec, abstract.train())
    if spec.train.freeze is not None:
        try:
            freeze(abstract, spec.train.freeze)
        except ValueError as error:
            raise ConfigError(str(error)) from error
    encoder, teacher, parts = task.encoder(abstract), task.teacher, spec.train.accumulate
    encoder.grad_checkpointing = spec.train.grad_checkpointing
    part = {name: value.chunk(parts)[0] for name, value in batch.items()}
    _counted[key] = Operations(
        forward=forward_flops(encoder, encoder.image_shape),
        step=parts * step_flops(task.losses, part),
        teacher=forward_flops(teacher, teacher.image_shape) if teacher else 0,
        copies=task.labelled_copies if teacher else None,
        batch_size=spec.train.batch_size,
    )
    return _counted[key]
