"""What the work of a study takes: its time, and how many fit into the memory of a GPU at once."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch

from vitcli.core.spec import AugmentSpec
from vitcli.runner.data.find import own_path
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.experiment.resolve import fit_to_data
from vitcli.runner.machine.device import pick_device
from vitcli.runner.study.plan import Options, StudyWork, worker_count
from vitcli.runner.text import ignore_message, quantity
from vitcli.runner.train.estimate import make_estimate, memory_bytes, whole_training_flops
from vitcli.runner.train.events import seconds_left
from vitcli.runner.train.prepare import Request, refuse_leaks

WORKER_BYTES = 2**30
"""Allowance for the memory of a process besides its tensors, such as CUDA's own. Not measured."""


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """Seconds for a trial of each variant, and in total with ``count`` trials at once."""

    by_variant: dict[str, float]
    flops: dict[str, int]
    """Variant -> operations of a trial, with its pre-training and its teacher's own training."""
    total: float
    count: int


def read_own_pictures(
    work: StudyWork, options: Options, on_message: Callable[[str], None] = ignore_message
) -> None:
    """Read the user's own pictures as the trials do, to refuse what the trials refuse."""
    request = Request(data_dir=options.data_dir, offline=True)
    specs = {
        trial.spec.data.replace(augment=AugmentSpec()): trial.spec
        for trial in reversed(work.trials)
        if own_path(trial.spec.data.name)
    }
    for data, spec in specs.items():
        refuse_leaks(spec, request.reader(spec)(data, on_message=on_message))


def estimate_study(
    work: StudyWork,
    options: Options,
    *,
    spent_seconds: float = 0.0,
    on_message: Callable[[str], None] = ignore_message,
) -> StudyEstimate:
    """Return the training times: those of finished trials, or measured on random images.

    This process took ``spent_seconds`` to start; a study and its workers take them again.
    """
    torch.set_num_threads(work.study.threads)
    seconds: dict[str, float] = {}
    flops: dict[str, int] = {}
    known: dict[str, list[float]] = {trial.variant: [] for trial in work.trials}
    for trial in work.study.trials([*known]) if known else ():
        record = work.states[trial.folder]
        if not record.source and (took := record.number("train_seconds")):
            known[trial.variant].append(took + (record.number("pretrain_seconds") or 0))
    if unknown := sum(not times for times in known.values()):
        on_message(f"timing {quantity(unknown, 'variant')} on random images")
    for name, times in known.items():
        spec = work.study.trials([name])[0].spec
        experiment = Experiment(work.study.name, spec, work.study.path, variant=name)
        flops[name] = whole_training_flops(spec)
        seconds[name] = fmean(times) if times else make_estimate(experiment, options.device).seconds
    count = max(1, min(worker_count(work.study.threads, options), len(work.trials)))
    total = seconds_left([seconds[trial.variant] for trial in work.trials], 0, [], count) or 0.0
    total += 2 * spent_seconds if work.trials else 0.0
    return StudyEstimate(by_variant=seconds, flops=flops, total=total, count=count)


def limit_workers(
    work: StudyWork, options: Options, count: int, on_message: Callable[[str], None]
) -> int:
    """Return ``count``, or the smaller number of trials that fit into a GPU at once.

    The trial that needs most memory is measured, in this process.
    """
    device, wanted = pick_device(options.device), min(count, len(work.trials))
    if device.type != "cuda" or wanted < 2:
        return count
    variants = {trial.variant: trial.spec for trial in work.trials}
    stated: dict[str, int] = {}
    for name, spec in variants.items():
        resolved = fit_to_data(spec, describe_data(spec.data))
        stated[name] = memory_bytes(resolved, abstract_module(resolved))
    largest = max(stated, key=lambda name: stated[name])
    experiment = Experiment(work.study.name, variants[largest], work.study.path, variant=largest)
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
