"""The estimate of `--dry-run`: size, memory and time of a training, without data or training."""

import itertools
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitcli.core.data.batches import num_batches
from vitcli.core.inspect.cost import (
    activation_bytes,
    count_parameters,
    forward_flops,
    parameters_by_part,
)
from vitcli.core.spec import OPTIMIZERS, ExperimentSpec
from vitcli.core.tasks.build import task_class
from vitcli.core.train.fit import fit
from vitcli.core.train.optim import build_optimizers
from vitcli.runner.data.load import describe_data
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module, encoder_of, new_module
from vitcli.runner.experiment.config import Experiment, config_text, fit_to_data
from vitcli.runner.machine.device import hardware, pick_device, pick_precision
from vitcli.runner.machine.kernels import choose_kernels
from vitcli.runner.machine.resources import resource_errors

PROBE_IMAGES = 32
PROBE_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Sizes and estimates. The time is measured on a few random images, so it is a rough guide."""

    experiment: Experiment
    spec: ExperimentSpec
    parts: dict[str, int]
    parameters: int
    forward_flops: int
    memory_bytes: int
    seconds: float
    hardware: str
    steps_per_epoch: int

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment.name,
            "parameters": self.parameters,
            "parameters_by_part": self.parts,
            "forward_flops_per_image": self.forward_flops,
            "steps_per_epoch": self.steps_per_epoch,
            "estimated_memory_bytes": self.memory_bytes,
            "estimated_seconds": self.seconds,
            "hardware": self.hardware,
            "config": self.spec.model_dump(mode="json"),
        }

    def as_text(self) -> str:
        width = max(len(part) for part in [*self.parts, "parameters"])
        rows = [f"{part:<{width}}  {count:>12,}" for part, count in self.parts.items()]
        rows += [f"{'parameters':<{width}}  {self.parameters:>12,}", ""]
        hours, minutes = divmod(round(self.seconds / 60), 60)
        estimate = f"{hours} h {minutes:02d} min" if hours else f"{minutes or 'under one'} min"
        rows += [
            f"forward pass   {self.forward_flops / 1e9:.3f} GFLOP per image (training: 3 times)",
            f"memory         about {self.memory_bytes / 2**30:.2f} GiB in fp32",
            f"time           about {estimate} on {self.hardware}"
            " (measured on random images, without evaluation)",
            "",
            config_text(self.spec),
        ]
        return "\n".join(rows).rstrip()


@resource_errors()
def make_estimate(experiment: Experiment, device_name: str = "auto") -> Estimate:
    """Build the model, count its sizes and time its steps. No data set is needed."""
    device = pick_device(device_name)
    facts = describe_data(experiment.spec.data)
    spec = fit_to_data(experiment.spec, facts)
    assert spec.model.img_size is not None
    assert spec.model.in_chans is not None
    abstract, module = abstract_module(spec), new_module(spec)
    shape = (spec.model.in_chans, *spec.model.img_size)
    encoder = encoder_of(spec, abstract)
    for each in (encoder, encoder_of(spec, module)):
        each.grad_checkpointing = spec.train.grad_checkpointing
    per_image = activation_bytes(encoder, shape)
    try:
        count = num_batches(facts.num_train, spec.train.batch_size)
    except ValueError as error:
        raise ConfigError(f"train.batch_size: {error}") from error
    steps = min(count, spec.train.limit_batches or count)
    seconds = step_seconds(module, spec, device) * steps * spec.train.epochs
    return Estimate(
        experiment=experiment,
        spec=spec,
        parts=parameters_by_part(module),
        parameters=count_parameters(module),
        forward_flops=forward_flops(encoder, shape),
        memory_bytes=memory_bytes(spec, count_parameters(module), per_image),
        seconds=seconds,
        hardware=hardware(device),
        steps_per_epoch=steps,
    )


def memory_bytes(spec: ExperimentSpec, parameters: int, activations: int) -> int:
    """Return the bytes of weights, gradients, optimiser state and one part's activations."""
    copies = 2 + OPTIMIZERS[spec.optim.name].state_copies + (spec.train.ema_decay is not None)
    part = spec.train.batch_size // spec.train.accumulate
    return int(4 * parameters * copies + activations * part)


def step_seconds(module: nn.Module, spec: ExperimentSpec, device: torch.device) -> float:
    """Return the time of one training step in seconds.

    It is the fastest of a few steps on random images, scaled to the batch.
    """
    count = spec.train.batch_size
    if device.type != "cuda":
        count = min(count, PROBE_IMAGES)
    autocast = pick_precision(spec.train.precision, device)
    module.to(device).train()
    choose_kernels(module, device, autocast, spec.train.wanted_kernels)
    task = task_class(spec)(spec, module)
    steps = fit(
        task,
        [task.random_batch(count, device)] * (PROBE_STEPS + 1),
        build_optimizers(module, spec.optim),
        lambda step: 0.0,
        accumulate=spec.train.accumulate if device.type == "cuda" else 1,
        max_grad_norm=spec.optim.max_grad_norm,
        autocast=autocast,
    )
    seconds = []
    for _ in steps:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter())
    best = min(after - before for before, after in itertools.pairwise(seconds))
    return best * spec.train.batch_size / count
