"""`vitcli bench train`, `inference` and `data`: speed of an experiment's model and its input."""

import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType

from vitcli.core.data.batches import Batch, num_batches
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import autocast_to
from vitcli.core.train.training import Step, Training
from vitcli.runner.data.load import DataInfo, describe_data
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.build import encoder_of, new_module
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


WARM_UP = 4
BATCHES = (1, 8, 64, 256)
"""Numbers of images of an inference."""
Result = dict[str, Any]


@resource_errors(SMALLER)
def bench_training(work: Workload, *, rounds: int, seconds: float) -> Result:
    device, batch = work.device, work.spec.train.batch_size
    began = now(device)
    compile_training(work.training, ignore_message)
    compiling = now(device) - began
    step, data = partial(next, work.steps()), partial(next, work.batches())
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
    flops = count_operations(work.spec, next(work.batches())).step / batch
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
        "peak_memory_bytes": memory,
        "compile_seconds": compiling,
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
    return about | {"rows": rows}


@resource_errors(SMALLER)
def bench_data(work: Workload, *, rounds: int, seconds: float) -> Result:
    batch = work.spec.train.batch_size
    step = partial(next, work.batches())
    times = turns({"data": step}, work.device, rounds=rounds, seconds=seconds)["data"]
    batch_seconds = median(times)
    return {
        "benchmark": "data",
        "setting": work.setting,
        "experiment": work.name,
        "batch_size": batch,
        "images_per_second": batch / batch_seconds,
        "turns": [batch / value for value in times],
        "batch_seconds": batch_seconds,
    }


STEPS = 5


def profile(steps: Iterator[Any], device: torch.device, trace: Path) -> list[dict[str, Any]]:
    """Run a few steps, write a trace for chrome://tracing, and return the costliest operators."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    next(steps)
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        for _ in range(STEPS):
            next(steps)
    profiler.export_chrome_trace(str(trace))
    return costliest(profiler.key_averages(), on_gpu=device.type == "cuda")


def costliest(averages: Iterable[Any], *, on_gpu: bool) -> list[dict[str, Any]]:
    """Return the rows of ``profile`` from the averages of torch's profiler: kernels on a GPU."""
    kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
    time_of = attrgetter("self_device_time_total" if on_gpu else "self_cpu_time_total")
    events = [e for e in averages if e.device_type == kind and not e.is_user_annotation]
    total = sum(map(time_of, events)) or 1.0
    return [
        {
            "operator": event.key,
            "share": time_of(event) / total,
            "seconds": time_of(event) / 1e6 / STEPS,
            "calls": event.count / STEPS,
        }
        for event in sorted(events, key=time_of, reverse=True)[:10]
    ]


PEAK_SECONDS = 0.5
MATMUL_SIDE = {"cpu": 2048, "cuda": 8192}


def now(device: torch.device) -> float:
    """Return the time in seconds, after the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def timed(work: Callable[[], object], device: torch.device) -> float:
    began = now(device)
    work()
    return now(device) - began


def turns(
    works: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return how many seconds one call of each function takes, for each round.

    The functions are measured in turns: A B A B ... A turn takes about ``seconds``. Each function
    is first called twice: once as a warm-up, and once to find how many calls fit into a turn.
    """
    counts = {}
    for name, work in works.items():
        work()
        counts[name] = max(1, round(seconds / max(timed(work, device), 1e-9)))
    measured: dict[str, list[float]] = {name: [] for name in works}
    for _, (name, work) in itertools.product(range(rounds), works.items()):
        began = now(device)
        for _ in range(counts[name]):
            work()
        measured[name].append((now(device) - began) / counts[name])
    return measured


def matmul_peak(device: torch.device, dtype: torch.dtype | None) -> float:
    """Multiply large square matrices several times; return the FLOP/s of the fastest product."""
    side = MATMUL_SIDE.get(device.type, 4096)
    a = torch.randn(side, side, device=device, dtype=dtype or torch.float32)
    b = torch.randn_like(a)
    times = [timed(lambda: a @ b, device)]
    while len(times) < 6 or (sum(times[1:]) < PEAK_SECONDS and len(times) < 101):
        times.append(timed(lambda: a @ b, device))
    return 2 * side**3 / min(times)
