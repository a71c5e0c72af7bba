"""`vitcli bench train`, `inference` and `data`: speed of an experiment's model and its input."""

import itertools
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.inspect.cost import activation_bytes, count_parameters
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import autocast_to
from vitcli.core.train.training import Step, Training
from vitcli.plugins.bench.clock import copy_bandwidth, matmul_peak, now, step_of, timed, turns
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import describe_spec, steps_per_epoch
from vitcli.runner.machine.device import arithmetic, hardware, pick_device, pick_precision
from vitcli.runner.machine.resources import SMALLER, resource_errors
from vitcli.runner.text import ignore_message
from vitcli.runner.train.build import build_training, compile_training
from vitcli.runner.train.flops import count_operations, random_data, with_statistics

MOST_IMAGES = 10_000
RATE = 1e-3
"""Factor of the learning rates: weights must not grow while the clock runs."""


@dataclass(frozen=True)
class Workload:
    """A training of an experiment on random images in the shape of its data."""

    name: str
    info: DataInfo
    training: Training

    @property
    def spec(self) -> ExperimentSpec:
        return self.training.spec

    @property
    def device(self) -> torch.device:
        return self.training.device

    @property
    def setting(self) -> str:
        kernels = ", native kernels" if self.training.kernels == "native" else ""
        return (
            f"{self.name} on {self.device} ({hardware(self.device)}),"
            f" {self.training.precision}{kernels}, batch {self.spec.train.batch_size}"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.info.in_chans, *self.info.img_size)

    def batches(self) -> Iterator[Batch]:
        """Yield training batches without end, augmented as the experiment says."""
        for epoch in itertools.count():
            yield from self.training.task.batches(self.training.data, epoch)

    def steps(self) -> Iterator[Step]:
        return itertools.chain.from_iterable(map(self.training.run_epoch, itertools.count()))

    @property
    def steps_per_epoch(self) -> int:
        return num_batches(self.info.num_train, self.spec.train.batch_size)


def make_workload(
    experiment: Experiment, device_name: str, on_message: Callable[[str], None]
) -> Workload:
    """Build a training as ``vitcli train`` does, uncompiled, on at most ``MOST_IMAGES`` images."""
    device, info = pick_device(device_name), describe_data(experiment.spec.data)
    spec = with_teacher(experiment.spec, required=False)
    spec = with_statistics(describe_spec(spec))
    steps_per_epoch(spec, info.num_train)
    count = min(info.num_train, max(MOST_IMAGES, spec.train.batch_size))
    data = random_data(spec, count, device)
    training = build_training(spec, new_module(spec).train(), data, on_message)
    for optimizer in training.optimizers:
        for group in optimizer.param_groups:
            group["peak_lr"] *= RATE
    return Workload(experiment.name, info, training)


WARM_UP = 3
BATCHES = (1, 8, 64, 256)
"""Numbers of images of an inference."""
Result = dict[str, Any]


@resource_errors(SMALLER)
def bench_training(work: Workload, *, rounds: int, seconds: float) -> Result:
    """Measure speed, memory and operations of training steps with data, after a warm-up."""
    device, batch = work.device, work.spec.train.batch_size
    began = now(device)
    compile_training(work.training, ignore_message)
    compiling = now(device) - began
    step, data = step_of(work.steps()), step_of(work.batches())
    first = timed(step, device)
    for _ in range(WARM_UP):
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    times = turns({"step": step, "data": data}, device, rounds=rounds, seconds=seconds)
    if device.type == "cuda":
        memory = int(torch.cuda.max_memory_allocated(device))
    else:  # of the process
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory *= 1 if sys.platform == "darwin" else 1024
    abstract = encoder_of(work.spec, abstract_module(work.spec))
    abstract.grad_checkpointing = work.spec.train.grad_checkpointing
    flops = count_operations(work.spec, next(work.batches())).step / batch
    traffic = 2 * activation_bytes(abstract, work.image_shape)
    if work.training.autocast is not None:
        traffic //= 2
    step_seconds = median(times["step"])
    speed, peak = batch / step_seconds, matmul_peak(device, work.training.autocast)
    return {
        "benchmark": "train",
        "setting": work.setting,
        "experiment": work.name,
        "precision": work.training.precision,
        "kernels": work.training.kernels,
        "batch_size": batch,
        "parameters": count_parameters(work.training.task.module),
        "images_per_second": speed,
        "turns": [batch / value for value in times["step"]],
        "step_seconds": step_seconds,
        "data_share": median(times["data"]) / step_seconds,
        "epoch_seconds": step_seconds * work.steps_per_epoch,
        "images_per_epoch": work.steps_per_epoch * batch,
        "flops_per_image": flops,
        "flops_per_second": flops * speed,
        "matmul_peak": peak,
        "matmul_share": flops * speed / peak,
        "activation_traffic": traffic * speed,
        "copy_bandwidth": copy_bandwidth(device),
        "peak_memory_bytes": memory,
        "compile_seconds": compiling,
        "first_step_seconds": first,
    }


@resource_errors()
def bench_inference(work: Workload, *, rounds: int, seconds: float) -> Result:
    """Forward passes in inference mode: in fp32, as ``vitcli eval`` runs, and as in training."""
    plain = encoder_of(work.spec, new_module(work.spec)).to(work.device)  # as load_model does
    models = {"fp32": plain.eval()}
    trained = work.training.task.encoder(work.training.module)
    models.setdefault(work.training.precision, trained.eval())
    images = torch.randn(max(BATCHES), *work.image_shape, device=work.device)

    def forward(count: int, precision: str) -> None:
        autocast = autocast_to(work.device, pick_precision(precision, work.device))
        with torch.inference_mode(), arithmetic(precision), autocast:
            models[precision](images[:count])

    works: dict[str, Callable[[], object]] = {
        f"{precision} {count}": partial(forward, count, precision)
        for precision in models
        for count in BATCHES
    }
    times = turns(works, work.device, rounds=rounds, seconds=seconds)
    rows = [
        {
            "precision": name.split()[0],
            "batch_size": int(name.split()[1]),
            "seconds": median(pass_seconds),
            "images_per_second": int(name.split()[1]) / median(pass_seconds),
        }
        for name, pass_seconds in times.items()
    ]
    about = {"benchmark": "inference", "setting": work.setting, "experiment": work.name}
    return {**about, "rows": rows}


@resource_errors(SMALLER)
def bench_data(work: Workload, *, rounds: int, seconds: float) -> Result:
    batch = work.spec.train.batch_size
    step = step_of(work.batches())
    first = timed(step, work.device)
    times = turns({"data": step}, work.device, rounds=rounds, seconds=seconds)["data"]
    batch_seconds = median(times)
    size = work.image_shape[0] * work.image_shape[1] * work.image_shape[2]
    return {
        "benchmark": "data",
        "setting": work.setting,
        "experiment": work.name,
        "batch_size": batch,
        "images_per_second": batch / batch_seconds,
        "turns": [batch / value for value in times],
        "batch_seconds": batch_seconds,
        "bytes_per_second": 4 * size * batch / batch_seconds,
        "copy_bandwidth": copy_bandwidth(work.device),
        "first_batch_seconds": first,
    }
