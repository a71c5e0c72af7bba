"""The floating-point operations of a training."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.data.source import DataSet, Images
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.own import PYTHON
from vitcli.core.spec.train import MAX_EPOCHS
from vitcli.core.train.optim import freeze
from vitcli.runner.data.extras import EXTRAS
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.build import abstract_copy, abstract_module, new_module
from vitcli.runner.experiment.resolve import fit_to_data, steps_per_epoch
from vitcli.runner.run.folder import find_run
from vitcli.runner.run.record import read_record, whole_flops

GREY, SPREAD = 0.5, 0.25
"""Mean and standard deviation for random pixels, unless the experiment has its own."""

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
    spec: ExperimentSpec, batch: Batch, module: nn.Module | None = None
) -> Operations:
    """Return the operations of an experiment whose batches have these shapes.

    With gradient checkpointing, the recomputed operations of a step are counted again. What is
    frozen below all that is trained needs no backward pass. ``module`` is what the experiment
    trains, if that is at hand; it stays as it is.

    Counting takes longer than a tiny training, so it is done once in a process, but each time with
    parts of a notebook, which may change without another name or hash.
    """
    shapes = ((name, value.shape) for name, value in batch.items())
    fields = {"exclude": {"seed"}} if spec.code else {"include": FIELDS}  # own code sees all
    key = (spec.model_dump_json(**fields), *shapes)
    if key in _counted and PYTHON not in spec.code.values():
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


def flops_of_epochs(spec: ExperimentSpec, num_train: int) -> Callable[[int], tuple[int, int]]:
    """Return a function: number of epochs -> ``Operations.of_steps`` of its steps."""
    count = steps_per_epoch(spec, num_train)
    steps = min(count, spec.train.limit_batches or count)
    operations = operations_of(spec)
    return lambda epochs: operations.of_steps(steps * epochs, num_train)


def operations_of(spec: ExperimentSpec) -> Operations:
    """Return ``count_operations`` for random images."""
    known = with_statistics(spec)
    data = random_data(known, spec.train.batch_size, torch.device("cpu"))
    return count_operations(spec, next(task_class(spec)(known, new_module(known)).batches(data, 0)))


def training_flops(spec: ExperimentSpec) -> int:
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


def with_statistics(spec: ExperimentSpec) -> ExperimentSpec:
    data, channels = spec.data, spec.model.in_chans or 1
    mean, std = data.mean or (GREY,) * channels, data.std or (SPREAD,) * channels
    return spec.replace(data=data.replace(mean=mean, std=std))


def random_data(spec: ExperimentSpec, count: int, device: torch.device) -> DataSet:
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
