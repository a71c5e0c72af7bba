"""`--dry-run`: the plan of a training in numbers. Nothing is trained, written or downloaded."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from vitcli.core.data.batches import images_at_once, limit_images, num_batches, num_limited
from vitcli.core.inspect.cost import activation_bytes, count_parameters
from vitcli.core.spec import OPTIMIZERS, ExperimentSpec
from vitcli.core.train.training import Training
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.data.find import find_source, get_command
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import abstract_module, encoder_of
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import fit_to_data, shrink_batch
from vitcli.runner.machine.device import hardware, name_precision, pick_device, pick_precision
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.report.report import Fact, Report, hidden
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import duration, quantity, tera
from vitcli.runner.train.build import compile_training, settings
from vitcli.runner.train.flops import flops_of_epochs, operations_of, training_flops
from vitcli.runner.train.prepare import (
    Request,
    chosen_folder,
    finished_run,
    prepare,
    with_run_of_teacher,
)

STEPS = 3
"""Number of timed steps after the first one."""
SLOW_SECONDS = 10.0
"""No other step or evaluation is timed after so many seconds."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The size of a training, and the time that it takes."""

    spec: ExperimentSpec
    images: tuple[int, int, int]
    """Numbers of images for training, validation and testing."""
    memory_bytes: int
    seconds: dict[str, float] = field(default_factory=dict)
    """Part of the training -> its time; empty if the images are not on this machine."""
    notes: Sequence[str] = ()

    @property
    def total(self) -> float | None:
        return sum(self.seconds.values()) if self.seconds else None


@resource_errors(SMALLER)
def dry_run(experiment: Experiment, request: Request, spent_seconds: float = 0.0) -> Costs:
    """Prepare a training and take its first steps, with the notes and refusals of the training.

    This process took ``spent_seconds`` to start, which the training takes again.
    """
    began = time.perf_counter() - spent_seconds
    if finished := finished_run(experiment, request):
        again = finished.folder.rerun_command if request.resume else "--rerun"
        request.on_message(f"already finished, nothing would be trained ({again} trains it again)")
        request = replace(request, rerun=True)
    name = experiment.spec.data.name
    if name in CATALOGUE and not request.data_dir and not find_source(name, None):
        return without_images(experiment, request)
    plan = prepare(experiment, replace(request, offline=True))
    data, training, seconds = plan.data, plan.training, dict[str, float]()
    if plan.pretraining and isinstance(plan.first, RunDir):
        output = plan.first.path
        first = replace(request, output=output, resume=True, rerun=False, stop_after=None)
        seconds["pre-train"] = dry_run(plan.pretraining, replace(first, first=None)).total or 0.0
        began = time.perf_counter()
        compile_training(training, request.on_message)
    memory = memory_bytes(plan.spec)
    with settings(training):
        if training.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(training.device)
        seconds |= measure(training, began)
        if training.device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(training.device)
    return Costs(
        spec=plan.spec,
        images=(len(data.train), len(data.val or ()), len(data.test)),
        memory_bytes=memory,
        seconds=seconds,
    )


def without_images(experiment: Experiment, request: Request) -> Costs:
    """Return the sizes alone of a training whose images would first be downloaded."""
    folder = chosen_folder(experiment, request)
    spec = with_run_of_teacher(experiment, request, folder).spec
    device, facts = pick_device(request.device), describe_data(spec.data)
    pick_precision(name_precision(spec.train.precision, device), device)
    spec = fit_to_data(spec, facts)
    spec = shrink_batch(experiment, spec, facts.num_train, request.on_message)
    name, megabytes = spec.data.name, CATALOGUE[spec.data.name].download_bytes / 1e6
    note = (
        f"The time is not known, because {name} is not on this machine; get it"
        f" ({megabytes:.0f} MB): {get_command(name, request.offline)}"
    )
    return Costs(
        spec=spec,
        images=(facts.num_train, facts.num_val, facts.num_test),
        memory_bytes=memory_bytes(spec),
        notes=[note],
    )


def measure(training: Training, began: float) -> dict[str, float]:
    """Return the time of each part of a training, whose weights it changes.

    The first evaluation warms up. To read a number on the host waits for the device.
    """
    spec, task, data = training.spec, training.task, training.data
    training.module.train()
    before = time.perf_counter()
    next(iter(training.batches(0)))  # a teacher may label every image for it
    times = [time.perf_counter()]
    labelling = (times[0] - before) * max(0, min(task.labelled_copies or 1, spec.train.epochs) - 1)
    steps = itertools.chain.from_iterable(map(training.run_epoch, itertools.count()))
    for step in itertools.islice(steps, 1 + STEPS):
        step.scalars["loss"].item()
        times.append(time.perf_counter())
        if times[-1] - times[0] > SLOW_SECONDS:
            break
    first, *others = [after - before for before, after in itertools.pairwise(times)]
    images = limit_images(data.test, spec)[: images_at_once(training.device)]
    an_image = 0.0
    for _ in range(2):
        before = time.perf_counter()
        next(iter(task.outputs(training.evaluated, images).values())).cpu()
        an_image = (time.perf_counter() - before) / len(images)
        if an_image * len(images) > SLOW_SECONDS:
            break
    num_images = evaluated_images(spec, len(data.val or ()), len(data.test))
    return {
        "start": times[1] - began + labelling,
        "train": min(others, default=first) * training.num_steps,
        "evaluate": an_image * num_images,
    }


def evaluated_images(spec: ExperimentSpec, num_val: int, num_test: int) -> int:
    times = math.ceil(spec.train.epochs / spec.train.eval_every)
    each, once = (num_val, num_test) if num_val else (num_test, 0)
    return times * num_limited(each, spec) + num_limited(once, spec)


def memory_bytes(spec: ExperimentSpec) -> int:
    """Return the bytes of weights, gradients, optimiser state and activations, in fp32."""
    abstract = abstract_module(spec)
    encoder = encoder_of(spec, abstract)
    encoder.grad_checkpointing = spec.train.grad_checkpointing
    activations = activation_bytes(encoder, encoder.image_shape)
    copies = 2 + OPTIMIZERS[spec.optim.name].state_copies + (spec.train.ema_decay is not None)
    part = spec.train.batch_size // spec.train.accumulate
    return int(4 * count_parameters(abstract) * copies + activations * part)


def costs_report(name: str, costs: Costs, request: Request) -> Report:
    """Return what ``--dry-run`` prints of the experiment ``name``."""
    spec, total, seconds = costs.spec, costs.total, costs.seconds
    num_train, *held_out = costs.images
    num_val, num_test = (num_limited(count, spec) for count in held_out)
    epochs, device = spec.train.epochs, pick_device(request.device)
    precision = name_precision(spec.train.precision, device)
    module, flops_of = abstract_module(spec), flops_of_epochs(spec, num_train)
    steps = num_batches(num_train, spec.train.batch_size)
    steps = min(steps, spec.train.limit_batches or steps)
    flops, taught = flops_of(epochs)
    operations = operations_of(spec)
    forward = operations.forward
    before = training_flops(spec.pretraining) if spec.pretraining else 0
    text_before = f"{tera(before)} TFLOP" if before else ""
    sizes = "x".join(map(str, spec.model.img_size or ()))
    val = f" {num_val:,} for validation," if num_val else ""
    images = (
        f"{num_train:,} for training,{val} {num_test:,} for testing;"
        f" {len(spec.data.class_names or ())} classes, {sizes} pixels"
    )
    an_image = f"{forward / 1e9:.3f} GFLOP per image"
    share = f", {100 * taught / flops:.0f} % of it the teacher's" if taught else ""
    is_measured = device.type == "cuda" and seconds
    source = f"of the GPU, measured in {precision}" if is_measured else "in fp32"
    time_text = ""
    if total is not None:
        parts = ", ".join(f"{duration(value)} to {part}" for part, value in seconds.items())
        time_text = f"about {duration(total)}: {parts}"
    facts = [
        *hidden(experiment=name, num_classes=spec.model.num_classes),
        Fact("num_train", num_train, label="images", text=images),
        *hidden(num_val=num_val, num_test=num_test),
        Fact(
            "steps_per_epoch", steps, label="steps", about=f"per epoch, {quantity(epochs, 'epoch')}"
        ),
        Fact("parameters", count_parameters(module)),
        *hidden(teacher_flops_per_image=operations.teacher),
        Fact("forward_flops_per_image", forward, label="forward pass", text=an_image),
        Fact("train_flops", flops, label="training", text=f"{tera(flops)} TFLOP{share}"),
        Fact("pretrain_flops", before, label="pre-training", text=text_before),
        Fact("estimated_memory_bytes", costs.memory_bytes, label="memory", about=source),
        *hidden(estimated_startup_seconds=seconds.get("start")),
        Fact("estimated_seconds", total, label="time", text=time_text),
        Fact("hardware", hardware(device), label="computed on"),
        *hidden(config=spec.model_dump(mode="json")),
    ]
    return Report(facts=facts, notes=costs.notes)
