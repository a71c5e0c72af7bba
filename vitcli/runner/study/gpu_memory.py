"""How many trials of a study fit into the memory of a GPU at once."""

from collections.abc import Callable

import torch

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.machine.device import pick_device
from vitcli.runner.study.plan import Options, StudyPlan
from vitcli.runner.train.estimate import make_estimate, memory_bytes

WORKER_BYTES = 2**30
"""Allowance for the memory of a process besides its tensors, such as CUDA's own. Not measured."""


def limit_workers(
    plan: StudyPlan, options: Options, count: int, on_message: Callable[[str], None]
) -> int:
    """Return ``count``, or the smaller number of trials that fit into a GPU at once.

    The trial that needs most memory is measured, in this process.
    """
    device, wanted = pick_device(options.device), min(count, len(plan.trials))
    if device.type != "cuda" or wanted < 2:
        return count
    variants = {trial.variant: trial.spec for trial in plan.trials}
    largest = max(variants, key=lambda name: _stated_bytes(variants[name]))
    experiment = Experiment(plan.study.name, variants[largest], plan.study.path, variant=largest)
    each = make_estimate(experiment, options.device).memory_bytes + WORKER_BYTES
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    fitting = max(1, free // each)
    if fitting >= wanted:
        return count
    on_message(
        f"note: {wanted} trials at once need about {wanted * each / 2**30:.1f} GiB of {device}, and"
        f" {free / 2**30:.1f} GiB are free; training {fitting} at once"
    )
    return fitting


def _stated_bytes(spec: ExperimentSpec) -> int:
    """Return the memory of a training as computed, not measured, to rank trials."""
    resolved = fit_to_data(spec, describe_data(spec.data))
    return memory_bytes(resolved, abstract_module(resolved))
