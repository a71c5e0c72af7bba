"""The operations of a training, counted on random images without memory."""

import copy
import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vitcli.core import ranks
from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet, Images
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.train import MAX_EPOCHS
from vitcli.core.train.optim import freeze
from vitcli.core.train.training import Training
from vitcli.runner.data.extras import EXTRAS
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.resolve import fit_to_data, steps_per_epoch
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.run.folder import find_run
from vitcli.runner.run.record import read_record, whole_flops

GREY, SPREAD = 0.5, 0.25
"""Mean and standard deviation for random pixels, unless the experiment has its own."""
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


def without_weights(training: Training) -> nn.Module | None:
    """Return a copy of the trained module, on the device ``meta`` and without native kernels.

    None with own code or several ranks, whose modules may not compute there.
    """
    if training.spec.code or ranks.size() > 1:
        return None
    meta = torch.device("meta")
    module = copy.deepcopy(training.module).to(meta)
    choose_kernels(module, meta, None, "torch")
    return module.train()


def count_forward_flops(spec: ExperimentSpec, module: nn.Module | None = None) -> int:
    """Return the floating-point operations of a forward pass of one image through the encoder.

    ``module`` is that of ``without_weights``; None builds one.
    """

    def count() -> int:
        encoder = encoder_of(spec, module or abstract_module(spec))
        return forward_flops(encoder, encoder.image_shape)

    return _once(spec, OF_A_MODEL, count)


def count_step_flops(spec: ExperimentSpec, batch: Batch, module: nn.Module | None = None) -> int:
    """Return the floating-point operations of a step on a batch, forward and backward.

    A teacher that the step calls is counted. With gradient checkpointing, the recomputed operations
    are counted again. What is frozen below all that is trained needs no backward pass.
    """

    def count() -> int:
        abstract = module or abstract_module(spec).train()
        if spec.train.freeze is not None:
            try:
                freeze(abstract, spec.train.freeze)
            except ValueError as error:
                raise ConfigError(str(error)) from error
        encoder_of(spec, abstract).grad_checkpointing = spec.train.grad_checkpointing
        parts = spec.train.accumulate
        part = {name: value.chunk(parts)[0] for name, value in batch.items()}
        return parts * step_flops(task_class(spec)(spec, abstract).losses, part)

    shapes = ((name, value.shape) for name, value in batch.items())
    return _once(spec, OF_A_STEP, count, *shapes)


def teacher_cost(spec: ExperimentSpec, module: nn.Module | None = None) -> tuple[int, int | None]:
    """Return the operations of a teacher's forward pass of one image; 0 without a teacher.

    With them, return how many copies of each image it labels before the steps; None if it is
    called in each step.
    """
    task = task_class(spec)(spec, module or abstract_module(spec))
    if not task.teacher:
        return 0, None
    return forward_flops(task.teacher, task.teacher.image_shape), task.labelled_copies


def flops_of_steps(
    spec: ExperimentSpec, batch: Batch, num_train: int, module: nn.Module | None = None
) -> Callable[[int], tuple[int, int]]:
    """Return a function: number of steps -> their operations, and those of the teacher in them."""
    of_teacher, copies = teacher_cost(spec, module)
    of_step, size = count_step_flops(spec, batch, module), spec.train.batch_size

    def count(num_steps: int) -> tuple[int, int]:
        if copies is None:  # the steps contain the teacher
            return num_steps * of_step, num_steps * size * of_teacher
        epochs = math.ceil(num_steps / num_batches(num_train, size))
        taught = of_teacher * num_train * min(copies, epochs)
        return num_steps * of_step + taught, taught

    return count


def flops_of_epochs(spec: ExperimentSpec, num_train: int) -> Callable[[int], tuple[int, int]]:
    """Return ``flops_of_steps`` for a number of epochs."""
    count = steps_per_epoch(spec, num_train)
    steps = min(count, spec.train.limit_batches or count)
    flops = flops_of_steps(spec, random_batch(spec), num_train)
    return lambda epochs: flops(steps * epochs)


def training_flops(spec: ExperimentSpec) -> int:
    """Return the floating-point operations of all steps of a training."""
    epochs = spec.train.epochs
    return _described(spec)(epochs)[0] if epochs else 0


def _described(spec: ExperimentSpec) -> Callable[[int], tuple[int, int]]:
    facts = describe_data(spec.data)
    return flops_of_epochs(fit_to_data(spec, facts), facts.num_train)


def whole_training_flops(spec: ExperimentSpec, *, strict: bool = False) -> int:
    """Return ``training_flops`` with those of the pre-training and of the teacher's training."""
    return training_flops(spec) + _flops_before(spec, strict=strict)


def _flops_before(spec: ExperimentSpec, *, strict: bool = False) -> int:
    first, teacher = spec.pretraining, teacher_run(spec)
    recorded = whole_flops(read_record(find_run(teacher)).result) if teacher else 0
    if recorded is None and strict:
        raise ConfigError(f"the compute of {teacher} is not known, so no other can equal it")
    return (training_flops(first) if first else 0) + int(recorded or 0)


def epochs_within(spec: ExperimentSpec, most: int) -> tuple[int, int]:
    """Return the longest training of at most so many operations, in epochs, and its operations.

    The operations are those of ``whole_training_flops``. It has at least one epoch, with more
    operations if need be.
    """
    before, count = _flops_before(spec, strict=True), _described(spec)

    def flops(epochs: int) -> int:
        return before + count(epochs)[0]

    epochs = max(1, bisect_right(range(1, MAX_EPOCHS + 1), most, key=flops))
    return epochs, flops(epochs)


def random_batch(spec: ExperimentSpec) -> Batch:
    spec, device = with_statistics(spec), torch.device("cpu")
    data = random_data(spec, spec.train.batch_size, device)
    return next(task_class(spec)(spec, new_module(spec)).batches(data, 0))


def with_statistics(spec: ExperimentSpec) -> ExperimentSpec:
    data, channels = spec.data, spec.model.in_chans or 1
    mean, std = data.mean or (GREY,) * channels, data.std or (SPREAD,) * channels
    return spec.replace(data=data.replace(mean=mean, std=std))


def random_data(spec: ExperimentSpec, count: int, device: torch.device) -> DataSet:
    """Return ``count`` random images on the device, in the shape that the model takes."""
    generator = torch.Generator().manual_seed(0)
    num_classes = spec.model.num_classes or 1
    shape = (count, spec.model.in_chans or 1, *(spec.model.img_size or (1, 1)))
    pixels = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(num_classes, (count,), generator=generator)
    extra = {kind: EXTRAS[kind].random(count, generator) for kind in spec.task.extras}
    images = Images(pixels, labels, extra).to(device)
    assert spec.data.mean is not None
    assert spec.data.std is not None
    return DataSet(
        name=spec.data.name,
        class_names=tuple(map(str, range(num_classes))),
        train=images,
        test=images,
        mean=spec.data.mean,
        std=spec.data.std,
        data_hash="",
        unlabelled=images if spec.data.labels else None,
    )
