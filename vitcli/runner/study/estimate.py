"""What the work of a study takes: its time and its operations."""

import functools
from dataclasses import dataclass
from pathlib import Path

import torch

from vitcli.runner.data.find import own_path
from vitcli.runner.engines.worker import SharedData
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.study.plan import Options, StudyWork, kept_data_hash, worker_count
from vitcli.runner.text import Listener
from vitcli.runner.train.dry_run import Costs, dry_run
from vitcli.runner.train.events import seconds_left
from vitcli.runner.train.flops import whole_training_flops
from vitcli.runner.train.prepare import Request


@dataclass(frozen=True, kw_only=True)
class StudyCosts:
    """Seconds for a trial of each variant, None without images, and of all, ``count`` at once."""

    by_variant: dict[str, float | None]
    flops: dict[str, int]
    """Variant -> operations of a trial, with its pre-training and its teacher's own training."""
    total: float | None
    count: int


def dry_run_study(
    work: StudyWork, options: Options, on_message: Listener, spent_seconds: float = 0.0
) -> StudyCosts:
    torch.set_num_threads(work.study.threads)
    once = functools.cache(on_message)
    spec = work.study.baseline.spec
    if work.trials and own_path(spec.data.name) and (data_hash := kept_data_hash(work)):
        request = Request(data_dir=options.data_dir, load=SharedData(data_hash))
        request.reader(spec)(spec.data, on_message=once)  # refuses edited pictures
    seconds: dict[str, float | None] = {}
    flops: dict[str, int] = {}
    for name, trial in {trial.variant: trial for trial in work.trials}.items():
        flops[name] = whole_training_flops(trial.spec)
        experiment = Experiment(work.study.name, trial.spec, work.study.path, variant=name)
        seconds[name] = dry_run_trial(experiment, work.root, options, once).total
    count = max(1, min(worker_count(work.study.threads, options), len(work.trials)))
    times = [time for trial in work.trials if (time := seconds[trial.variant]) is not None]
    total = None
    if len(times) == len(work.trials):
        total = (seconds_left(times, 0, [], count) or 0.0) + 2 * spent_seconds * bool(times)
    return StudyCosts(by_variant=seconds, flops=flops, total=total, count=count)


def dry_run_trial(
    experiment: Experiment,
    root: Path,
    options: Options,
    on_message: Listener,
    *,
    without_test: bool = False,
) -> Costs:
    request = Request(
        device=options.device,
        data_dir=options.data_dir,
        output=root / "dry-run",
        rerun=True,
        without_test=without_test,
        on_message=on_message,
    )
    return dry_run(experiment, request)
