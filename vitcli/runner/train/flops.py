"""The operations of a training step and of a forward pass."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitcli.core.data.batches import num_batches
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.optim import freeze
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module, encoder_of

OF_A_MODEL: dict[str, Any] = {"model": True, "task": True}
OF_A_STEP = OF_A_MODEL | {"train": {"batch_size", "accumulate", "freeze", "grad_checkpointing"}}
"""Fields on which the operations of a step depend."""
_COUNTED: dict[tuple[object, ...], int] = {}
"""Such fields as text, and the shapes of a batch -> operations."""


def _once(
    spec: ExperimentSpec, fields: dict[str, Any], count: Callable[[], int], *shapes: object
) -> int:
    """Count operations once in a process, because that takes longer than a tiny training.

    With own code, which a notebook may change, they are counted each time.
    """
    if spec.code:
        return count()
    key = (spec.model_dump_json(include=fields), *shapes)
    if key not in _COUNTED:
        _COUNTED[key] = count()
    return _COUNTED[key]


def count_forward_flops(spec: ExperimentSpec) -> int:
    """Return the floating-point operations of a forward pass of one image through the encoder."""

    def count() -> int:
        encoder = encoder_of(spec, abstract_module(spec))
        return forward_flops(encoder, encoder.image_shape)

    return _once(spec, OF_A_MODEL, count)


def count_step_flops(spec: ExperimentSpec, batch: dict[str, Tensor]) -> int:
    """Return the floating-point operations of a step on a batch, forward and backward.

    A teacher that the step calls is counted. With gradient checkpointing, the recomputed operations
    are counted again. What is frozen below all that is trained needs no backward pass.
    """

    def count() -> int:
        module = abstract_module(spec).train()
        if spec.train.freeze is not None:
            try:
                freeze(module, spec.train.freeze)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        encoder_of(spec, module).grad_checkpointing = spec.train.grad_checkpointing
        parts = spec.train.accumulate
        part = {name: value.chunk(parts)[0] for name, value in batch.items()}
        return parts * step_flops(task_class(spec)(spec, module).losses, part)

    shapes = ((name, value.shape) for name, value in batch.items())
    return _once(spec, OF_A_STEP, count, *shapes)


def teacher_cost(spec: ExperimentSpec) -> tuple[int, int | None]:
    """Return the operations of a teacher's forward pass of one image; 0 without a teacher.

    With them, return how many copies of each image it labels before the steps; None if it is
    called in each step.
    """
    task = task_class(spec)(spec, abstract_module(spec))
    if not task.teacher:
        return 0, None
    return forward_flops(task.teacher, task.teacher.image_shape), task.labelled_copies


def flops_of_steps(
    spec: ExperimentSpec, batch: dict[str, Tensor], num_train: int
) -> Callable[[int], tuple[int, int]]:
    """Return a function: number of steps -> their operations, and those of the teacher in them."""
    of_teacher, copies = teacher_cost(spec)
    of_step, size = count_step_flops(spec, batch), spec.train.batch_size

    def count(num_steps: int) -> tuple[int, int]:
        if copies is None:  # the steps contain the teacher
            return num_steps * of_step, num_steps * size * of_teacher
        epochs = math.ceil(num_steps / num_batches(num_train, size))
        taught = of_teacher * num_train * min(copies, epochs)
        return num_steps * of_step + taught, taught

    return count
