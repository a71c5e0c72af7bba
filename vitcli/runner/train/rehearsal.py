"""A training on random images, for measurements that need no data set."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.training import Step, Training
from vitcli.runner.data.extras import EXTRAS
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module, new_module
from vitcli.runner.experiment.resolve import fitting_sizes
from vitcli.runner.train.build import build_training, compile_training, settings
from vitcli.runner.train.flops import count_operations

QUICK_FLOPS = 2e10
"""Operations of a step that two CPU cores take in about a second."""
PROBE_PATCHES = 8
"""Smallest side of the grid of patches in a measurement."""
GREY, SPREAD = 0.5, 0.25
"""Mean and standard deviation for random pixels, unless the experiment has its own."""
PROBED = 5
"""Number of measured steps, including the first."""
PROBE_IMAGES = 32
PROBE_SECONDS = 4.0
"""A CPU measures ``PROBE_IMAGES`` per step, unless the steps of whole batches take less time."""
LABEL_BYTES = 8


@dataclass(frozen=True)
class Measurement:
    """Times and memory of the first steps of a training."""

    first_seconds: float
    """Time to compile the model and to take the first step."""
    step_seconds: float
    """Time of each other step."""
    compiled: bool
    peak_bytes: int | None
    """Most memory of the GPU that was allocated at once, without images; None without a GPU."""


def measure_steps(
    module: nn.Module,
    spec: ExperimentSpec,
    device: torch.device,
    compile_too: bool,
    on_message: Callable[[str], None],
    most_images: int = PROBE_IMAGES,
) -> Measurement:
    """Take the first steps of a training on random images. The weights do not change.

    ``most_images`` limits the images per step on a CPU, as ``PROBE_IMAGES`` does.
    """
    spec, batch_size, on_gpu = with_statistics(spec), spec.train.batch_size, device.type == "cuda"
    small = with_small_batch(spec, batch_size if on_gpu else min(PROBE_IMAGES, most_images))
    count, before = small.train.batch_size, 0
    module.train()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    began = time.perf_counter()
    data = random_data(spec, PROBED * count, device)
    training = build_training(small, module, data, on_message)
    with settings(training):
        if compile_too:
            compile_training(training, on_message)
        compiling = time.perf_counter() - began
        first, each = probe(training)
        whole = each * batch_size / count
        if count < batch_size and not training.compiled and whole * PROBED < PROBE_SECONDS:
            data = random_data(spec, PROBED * batch_size, device)
            _, whole = probe(build_training(spec, module, data))
        if on_gpu:  # in fp32, this may need more memory than a step
            training.task.outputs(training.evaluated, data.test)
    peak = None
    if on_gpu:
        used = torch.cuda.max_memory_allocated(device) - before
        peak = used - image_bytes(spec, len(data.train))
    return Measurement(compiling + first, whole, training.compiled, peak)


def probe(training: Training) -> tuple[float, float]:
    """Return the time of the first step on random images, and the shortest of a few others."""
    scale_rates(training, 0.0)
    seconds = [time.perf_counter()]
    for _ in itertools.islice(endless_steps(training), PROBED):
        if training.device.type == "cuda":
            torch.cuda.synchronize(training.device)
        seconds.append(time.perf_counter())
    first, *others = [after - before for before, after in itertools.pairwise(seconds)]
    return first, min(others)


def scale_rates(training: Training, rate: float) -> None:
    """Multiply the learning rates, because weights must not grow on random labels."""
    for group in (group for each in training.optimizers for group in each.param_groups):
        group["peak_lr"] *= rate


def endless_steps(training: Training) -> Iterator[Step]:
    for epoch in itertools.count():
        yield from training.run_epoch(epoch)


def with_small_batch(spec: ExperimentSpec, count: int) -> ExperimentSpec:
    """Return the spec with batches of ``count`` images, or more if the task refuses so few.

    A batch that is smaller than that of ``spec`` is not accumulated.
    """
    train = spec.train
    while count < train.batch_size:
        with contextlib.suppress(ValidationError):
            return spec.replace(train=train.replace(batch_size=count, accumulate=1))
        count *= 2
    return spec


def with_statistics(spec: ExperimentSpec) -> ExperimentSpec:
    data, channels = spec.data, spec.model.in_chans or 1
    mean, std = data.mean or (GREY,) * channels, data.std or (SPREAD,) * channels
    return spec.replace(data=data.replace(mean=mean, std=std))


def random_data(spec: ExperimentSpec, count: int, device: torch.device) -> DataSet:
    """Return ``count`` random images on the device, in the shape that the model takes."""
    generator = torch.Generator().manual_seed(0)
    num_classes = spec.model.num_classes or 1
    pixels = torch.randint(
        256, (count, *_image_shape(spec)), dtype=torch.uint8, generator=generator
    )
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


def image_bytes(spec: ExperimentSpec, count: int) -> int:
    return count * (math.prod(_image_shape(spec)) + LABEL_BYTES)


def _image_shape(spec: ExperimentSpec) -> tuple[int, int, int]:
    return (spec.model.in_chans or 1, *(spec.model.img_size or (1, 1)))


def random_batch(spec: ExperimentSpec, module: nn.Module) -> dict[str, Tensor]:
    spec, device = with_statistics(spec), next(module.parameters()).device
    data = random_data(spec, spec.train.batch_size, device)
    return next(task_class(spec)(spec, module).batches(data, 0))


def image_flops(spec: ExperimentSpec) -> float:
    small = with_small_batch(spec, max(2, spec.model.min_batch))
    operations = count_operations(small, random_batch(small, new_module(small)))
    return operations.step / small.train.batch_size


def quick_spec(spec: ExperimentSpec) -> ExperimentSpec:
    """Return the spec, with smaller images if a step of two images is slow on a CPU.

    The sides are halved, to whole patches, until the step is quick or the model refuses the size.
    """
    while 2 * image_flops(spec) > QUICK_FLOPS:
        height, width = spec.model.img_size or (0, 0)
        sides = fitting_sizes(spec.model, (height // 2, width // 2))[0]
        if min(sides) < PROBE_PATCHES * spec.model.patch_side:
            return spec
        try:
            smaller = spec.replace(model=spec.model.replace(img_size=sides))
            abstract_module(smaller)
        except (ValidationError, ConfigError):
            return spec
        spec = smaller
    return spec
