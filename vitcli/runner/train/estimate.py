"""The estimate of a training: its size, its memory and its time, measured on random images."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from vitcli.core.data.batches import LIMITED
from vitcli.core.data.source import DataSet
from vitcli.core.inspect.cost import activation_bytes, count_parameters, parameters_by_part
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import OPTIMIZERS, ExperimentSpec
from vitcli.core.spec.train import MAX_EPOCHS
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import fit_to_data, resolve, shrink_batch, steps_per_epoch
from vitcli.runner.machine.device import hardware, name_precision, pick_device
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.run.folder import find_run
from vitcli.runner.run.record import read_record, whole_flops
from vitcli.runner.text import duration, ignore_message, quantity
from vitcli.runner.train.flops import count_operations
from vitcli.runner.train.rehearsal import (
    QUICK_FLOPS,
    Measurement,
    image_bytes,
    image_flops,
    measure_steps,
    quick_spec,
    random_batch,
    random_data,
    with_statistics,
)

RANDOM_IMAGES = "random images"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Sizes and estimates. The time is measured on a few random images, so it is a rough guide."""

    experiment: Experiment
    spec: ExperimentSpec
    num_train: int
    num_test: int
    parts: dict[str, int]
    parameters: int
    forward_flops: int
    memory_bytes: int
    memory_source: str
    """What ``memory_bytes`` is: text for people."""
    startup_seconds: float
    """Time until the second step: to compile the model, to take the first step, and so on."""
    compiled: bool
    """Whether the model was compiled, in the time to start."""
    train_seconds: float
    """Time of the other steps."""
    evaluation_seconds: float
    train_flops: int
    """Floating-point operations of all training steps."""
    teacher_flops: int = 0
    """Operations of a teacher's forward pass of one image; the training contains them."""
    taught_flops: int = 0
    """Operations of the teacher in the training."""
    first: "Estimate | None" = None
    """The estimate of the pre-training, if there is one."""
    hardware: str
    steps_per_epoch: int
    measured_on: str
    """The images whose steps were timed: text for people."""
    stop_after: int | None = None
    """The epoch after which the training would stop; None if it is to train to its end."""

    @property
    def until_stop(self) -> "Estimate":
        """Return the estimate of the epochs up to the stop; the whole one if there is none."""
        epochs = self.spec.train.epochs
        if not self.stop_after or self.stop_after >= epochs:
            return self
        read, whole = (
            evaluated_images(self.spec, self.num_test, n) for n in (self.stop_after, epochs)
        )
        return replace(
            self,
            train_seconds=self.train_seconds * self.stop_after / epochs,
            evaluation_seconds=self.evaluation_seconds * read / whole,
            train_flops=self.train_flops // epochs * self.stop_after,
        )

    @property
    def seconds(self) -> float:
        before = self.first.seconds if self.first else 0.0
        return before + self.startup_seconds + self.train_seconds + self.evaluation_seconds

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON values, with the costs up to a stop beside the whole."""
        stop = self.until_stop
        return {
            "experiment": self.experiment.name,
            "num_train": self.num_train,
            "num_val": self.spec.data.val_split,
            "num_test": self.num_test,
            "num_classes": self.spec.model.num_classes,
            "parameters": self.parameters,
            "parameters_by_part": self.parts,
            "forward_flops_per_image": self.forward_flops,
            "train_flops": self.train_flops,
            "pretrain_flops": self.first.train_flops if self.first else 0,
            "teacher_flops_per_image": self.teacher_flops,
            "steps_per_epoch": self.steps_per_epoch,
            "estimated_memory_bytes": self.memory_bytes,
            "estimated_startup_seconds": self.startup_seconds,
            "estimated_seconds": self.seconds,
            "stop_after": self.stop_after,
            "estimated_seconds_until_stop": stop.seconds,
            "train_flops_until_stop": stop.train_flops,
            "hardware": self.hardware,
            "config": self.spec.model_dump(mode="json"),
        }

    def as_text(self) -> str:
        first = f" {duration(self.first.seconds)} to pre-train," if self.first else ""
        val, names = self.spec.data.val_split, self.spec.data.class_names or ()
        height, image_width = self.spec.model.img_size or (0, 0)
        epochs, stop = self.spec.train.epochs, self.until_stop
        teacher, until_stop = [], []
        if self.teacher_flops:
            share = self.taught_flops / self.train_flops if self.train_flops else 0.0
            teacher = [
                f"teacher        {self.teacher_flops / 1e9:.3f} GFLOP per image more,"
                f" {100 * share:.0f} % of the training's {self.train_flops / 1e12:.3g} TFLOP"
            ]
        if stop is not self:
            until_stop = [
                f"until stop     about {duration(stop.seconds)}: {self.stop_after} of {epochs}"
                " epochs"
            ]
        width = max(len(part) for part in [*self.parts, "parameters"])
        parts = [*self.parts.items(), ("parameters", self.parameters)]
        rows = [
            f"images         {self.num_train:,} for training,"
            f"{f' {val:,} for validation,' if val else ''} {self.num_test:,} for testing;"
            f" {len(names)} classes, {height}x{image_width} pixels",
            f"steps          {self.steps_per_epoch:,} per epoch, {quantity(epochs, 'epoch')}",
            f"forward pass   {self.forward_flops / 1e9:.3f} GFLOP per image (training: 3 times)",
            *teacher,
            f"memory         about {self.memory_bytes / 2**30:.2f} GiB {self.memory_source}",
            f"time           about {duration(self.seconds)}:{first}"
            f" {duration(self.startup_seconds)} to start{' and compile' if self.compiled else ''},"
            f" {duration(self.train_seconds)} to train,"
            f" {duration(self.evaluation_seconds)} to evaluate",
            *until_stop,
            f"measured on    {self.measured_on}, {self.hardware}",
            "all fields     add --json",
            "",
            *(f"{part:<{width}}  {count:>12,}" for part, count in parts),
        ]
        return "\n".join(rows)


@resource_errors(SMALLER)
def make_estimate(
    experiment: Experiment,
    device_name: str = "auto",
    data: DataSet | None = None,
    *,
    compile_too: bool = False,
    on_message: Callable[[str], None] = ignore_message,
) -> Estimate:
    """Build the model, count its sizes and time its steps.

    Without ``data``, the description of the data set must suffice. With ``compile_too``, the model
    is compiled if the training does so, which may take a minute.
    """
    device, first = pick_device(device_name), experiment.spec.pretraining
    spec, num_train, num_test = _resolve(experiment.spec, data)
    spec = shrink_batch(experiment, spec, num_train, on_message)
    abstract, module = abstract_module(spec), new_module(spec)
    sample = data or random_data(with_statistics(spec), 2, torch.device("cpu"))
    try:
        task_class(spec)(spec, abstract).check_data(sample)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    encoder_of(spec, module).grad_checkpointing = spec.train.grad_checkpointing
    count = steps_per_epoch(spec, num_train)
    steps = min(count, spec.train.limit_batches or count)
    measured, measured_on = _measure(spec, module, device, compile_too, on_message)
    each_step, images = measured.step_seconds, num_train + int(spec.data.val_split) + num_test
    if measured.peak_bytes is None:
        memory, source = memory_bytes(spec, abstract), "in fp32"
    else:
        memory = measured.peak_bytes + image_bytes(spec, images)
        source = f"of the GPU, measured in {name_precision(spec.train.precision, device)}"
    operations = count_operations(spec, random_batch(spec, module))
    own, copies = operations.forward, operations.copies
    # A training step is about three forward passes, and one of a teacher that it calls.
    in_step = 0 if copies else operations.teacher
    forward = each_step / spec.train.batch_size * own / (3 * own + in_step)
    num_steps = steps * spec.train.epochs
    flops, taught = operations.of_steps(num_steps, num_train)
    labelling = forward / own * taught if copies else 0.0
    return Estimate(
        experiment=experiment,
        spec=spec,
        num_train=num_train,
        num_test=num_test,
        parts=parameters_by_part(module),
        parameters=count_parameters(module),
        forward_flops=own,
        teacher_flops=operations.teacher,
        taught_flops=taught,
        memory_bytes=memory,
        memory_source=source,
        startup_seconds=measured.first_seconds,
        compiled=measured.compiled,
        train_seconds=labelling + each_step * num_steps,
        evaluation_seconds=forward * evaluated_images(spec, num_test),
        train_flops=flops,
        first=make_estimate(replace(experiment, spec=first), device_name) if first else None,
        hardware=hardware(device),
        steps_per_epoch=steps,
        measured_on=measured_on,
    )


def _measure(
    spec: ExperimentSpec,
    module: nn.Module,
    device: torch.device,
    compile_too: bool,
    on_message: Callable[[str], None],
) -> tuple[Measurement, str]:
    """Return the times of a training's first steps, and the images that they were measured on.

    A CPU takes slow steps with fewer images, and with smaller ones where two images are slow. The
    time of a step is then scaled by the operations.
    """
    if device.type == "cuda":
        return measure_steps(module, spec, device, compile_too, on_message), RANDOM_IMAGES
    quick = quick_spec(spec)
    if quick != spec:
        module = new_module(quick)
        encoder_of(quick, module).grad_checkpointing = quick.train.grad_checkpointing
    each = image_flops(quick)
    most = max(2, spec.model.min_batch, int(QUICK_FLOPS / each))
    measured = measure_steps(module, quick, device, compile_too, on_message, most)
    if quick == spec:
        return measured, RANDOM_IMAGES
    height, width = quick.model.img_size or (0, 0)
    scaled = replace(measured, step_seconds=measured.step_seconds * image_flops(spec) / each)
    return scaled, f"{RANDOM_IMAGES} of {height}x{width} pixels, scaled by operations"


def training_flops(spec: ExperimentSpec) -> int:
    """Return the floating-point operations of all steps of a training, without a measurement."""
    epochs = spec.train.epochs
    return _flops_of_epochs(spec)(epochs) if epochs else 0


def _flops_of_epochs(spec: ExperimentSpec) -> Callable[[int], int]:
    """Return a function: number of epochs -> operations of a training of this length."""
    spec, num_train, _ = _resolve(spec, None)
    count = steps_per_epoch(spec, num_train)
    steps = min(count, spec.train.limit_batches or count)
    operations = count_operations(spec, random_batch(spec, new_module(spec)))
    return lambda epochs: operations.of_steps(steps * epochs, num_train)[0]


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
    flops, before = _flops_of_epochs(spec), _flops_before(spec, strict=True)
    epochs = max(1, bisect_right(range(1, MAX_EPOCHS + 1), most - before, key=flops))
    return epochs, before + flops(epochs)


def _resolve(spec: ExperimentSpec, data: DataSet | None) -> tuple[ExperimentSpec, int, int]:
    """Return the resolved spec and the numbers of training and test images.

    Its ``data.val_split`` is a number of images, also where the experiment has a share.
    """
    if data:
        fitted, num_train, num_test = resolve(spec, data), len(data.train), len(data.test)
        num_val = len(data.val) if data.val else 0
    else:
        facts = describe_data(spec.data)
        fitted, num_train, num_test = fit_to_data(spec, facts), facts.num_train, facts.num_test
        num_val = facts.num_val
    data_spec = fitted.data.model_copy(update={"val_split": num_val})
    return fitted.model_copy(update={"data": data_spec}), num_train, num_test


def evaluated_images(spec: ExperimentSpec, num_test: int, epochs: int | None = None) -> int:
    """Return how many images the evaluations of a training read, up to an epoch or to its end."""
    train, val = spec.train, int(spec.data.val_split)
    most = train.limit_batches * LIMITED if train.limit_batches else max(val, num_test)
    times = math.ceil((train.epochs if epochs is None else epochs) / train.eval_every)
    each, once = (val, num_test) if val else (num_test, 0)
    return times * min(each, most) + min(once, most)


def memory_bytes(spec: ExperimentSpec, abstract: nn.Module) -> int:
    """Return the bytes of weights, gradients, optimiser state and one part's activations in fp32.

    Nothing is measured: ``abstract`` is the module on the device ``meta``.
    """
    encoder = encoder_of(spec, abstract)
    encoder.grad_checkpointing = spec.train.grad_checkpointing
    activations = activation_bytes(encoder, encoder.image_shape)
    copies = 2 + OPTIMIZERS[spec.optim.name].state_copies + (spec.train.ema_decay is not None)
    part = spec.train.batch_size // spec.train.accumulate
    return int(4 * count_parameters(abstract) * copies + activations * part)
