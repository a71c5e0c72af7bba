"""Compare training steps on a CPU: native kernels and torch's, in fp32 and in bf16.

Usage: python experiments/speed/cpu_kernels.py [--rounds 5] [--seconds 1]
The settings of a model take turns. The models are quickstart and those of peers.py.
"""

import argparse
from functools import partial
from pathlib import Path
from statistics import median

import torch
from ratios import AUGMENT, SIZES

from vitcli.core.spec import DataSpec, ExperimentSpec, TrainSpec, VitSpec
from vitcli.plugins.bench.training import make_workload, turns
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.machine.device import computes_bf16, cpu_kind, hardware, this_processor

PRECISIONS = ("fp32", "bf16") if computes_bf16(this_processor()) else ("fp32",)


def experiments() -> dict[str, Experiment]:
    """Return the models to measure, by name."""
    found = {"quickstart": load_experiment("quickstart")}
    for name, (batch, sizes) in SIZES.items():
        model, data = VitSpec(patch_size=4, **sizes), DataSpec(augment=AUGMENT)
        spec = ExperimentSpec(model=model, data=data, train=TrainSpec(batch_size=batch))
        found[name] = Experiment(name, spec, Path(name))
    return found


def measure(experiment: Experiment, rounds: int, seconds: float) -> dict[str, float]:
    """Return images per second by precision and kernels, such as ``fp32 native``."""
    works, batch = {}, experiment.spec.train.batch_size
    for precision in PRECISIONS:
        for kernels in ("auto", "torch"):
            train = experiment.spec.train.replace(precision=precision, kernels=kernels)
            spec = experiment.spec.replace(train=train)
            work = make_workload(Experiment(experiment.name, spec, experiment.path), "cpu", print)
            works[f"{precision} {work.training.kernels}"] = partial(next, work.steps())
    found = turns(works, torch.device("cpu"), rounds=rounds, seconds=seconds)
    return {name: batch / median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare native kernels with torch's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    print(f"{hardware(torch.device('cpu'))} ({cpu_kind()}); images/s")  # noqa: T201
    for name, experiment in experiments().items():
        found = measure(experiment, options.rounds, options.seconds)
        base = found["fp32 torch"]
        cells = [f"{key} {speed:,.0f} ({speed / base:.2f})" for key, speed in found.items()]
        print(f"{name}: {', '.join(cells)}")  # noqa: T201


if __name__ == "__main__":
    main()
