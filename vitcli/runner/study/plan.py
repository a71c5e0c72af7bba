"""What a study still has to train, and what that takes."""

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.errors import UserError
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.definition import Study, Trial, model_sizes
from vitcli.runner.study.saved import SavedTrials
from vitcli.runner.study.states import RESULTS, TrialState, trial_states

EXTRA_BYTES = 2_000_000
"""Predictions, curves and pictures of one trial, roughly."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run a study; nothing here changes what is trained."""

    jobs: int | None = None
    device: str = "auto"
    data_dir: Path | None = None
    offline: bool = False
    fail_fast: bool = False
    budget: float | None = None
    """Seconds after which running trials are stopped, to be continued by the next call."""
    command: str = ""
    """What to type to go on."""


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """What a run would do: each trial's state, the trials to train, and what it takes."""

    study: Study
    root: Path
    names: tuple[str, ...]
    found: dict[str, TrialState]
    saved: SavedTrials | None
    """Results that count where the study's folder has none."""
    trials: list[Trial]
    replaced: frozenset[str]
    """Folders of trials whose results are thrown away first."""
    rerun: tuple[str, ...]
    """Variants of which no saved result counts."""
    parameters: dict[str, int]
    disk_bytes: int


def default_root(study: Study) -> Path:
    return RUNS / study.name


def plan_study(
    study: Study,
    root: Path,
    only: tuple[str, ...],
    *,
    rerun: Collection[str] = (),
    saved: SavedTrials | None = None,
) -> StudyPlan:
    """Look at every trial and build every model without memory: mistakes come before training.

    Args:
        study: What was asked.
        root: The study's folder.
        only: Variants; all if empty.
        rerun: Variants to train anew, whatever there is of them.
        saved: Results that count where the study's folder has none.

    Raises:
        ConfigError: A variant does not fit the data set.
    """
    parameters = model_sizes(study)
    found = trial_states(study, root, only, saved, ignore=rerun)
    asked = study.trials(only)
    replaced = {
        t.folder for t in asked if t.variant in rerun and found[t.folder].state != "missing"
    }
    trials = [t for t in asked if t.folder in replaced or found[t.folder].state not in RESULTS]
    bytes_each = [4 * parameters[trial.variant] + EXTRA_BYTES for trial in trials]
    return StudyPlan(
        study=study,
        root=root,
        names=only,
        found=found,
        saved=saved,
        trials=trials,
        replaced=frozenset(replaced),
        rerun=tuple(rerun),
        parameters=parameters,
        disk_bytes=sum(bytes_each),
    )


def worker_count(study: Study, options: Options) -> int:
    """``-j``, or as many as the processor has cores for; one on a GPU."""
    from vitcli.runner.machine.device import pick_device

    if options.jobs:
        return options.jobs
    if pick_device(options.device).type != "cpu":
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // study.threads)


def states_now(todo: StudyPlan) -> dict[str, TrialState]:
    """The state of every trial as it is now."""
    return trial_states(todo.study, todo.root, todo.names, todo.saved, ignore=todo.rerun)


def saved_for_training(folder: Path, options: Options) -> SavedTrials:
    """Saved trials, of which only those are taken that could have been trained here."""
    from vitcli.runner.data.load import load_data
    from vitcli.runner.machine.device import pick_device, pick_precision, precision_name

    device = pick_device(options.device)

    @functools.cache
    def data_hash(spec: DataSpec) -> str | None:
        try:
            return load_data(spec, data_dir=options.data_dir, offline=options.offline).data_hash
        except UserError:  # a training that needs the images reports this error itself
            return None

    def precision(spec: ExperimentSpec) -> str:
        return precision_name(pick_precision(spec.train.precision, device))

    return SavedTrials(folder, precision, data_hash)


def unfinished(found: Mapping[str, TrialState]) -> dict[str, TrialState]:
    """Trials that are no results yet."""
    return {folder: state for folder, state in found.items() if state.state not in RESULTS}


def summary(found: Mapping[str, TrialState]) -> str:
    """Such as ``12 finished, 1 diverged, 5 missing``."""
    states = [state.state for state in found.values()]
    return ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(sorted(states)))


@dataclass(frozen=True, kw_only=True)
class StudyEstimate:
    """Seconds a trial of each variant takes, and the whole of what is to do, ``count`` at once."""

    by_variant: dict[str, float]
    total: float
    count: int


def estimate_study(todo: StudyPlan, options: Options) -> StudyEstimate:
    """As measured where a trial is finished, else timed on a few random images."""
    import torch

    from vitcli.runner.train.estimate import make_estimate

    torch.set_num_threads(todo.study.threads)
    seconds: dict[str, float] = {}
    for name in {trial.variant for trial in todo.trials}:
        trials = todo.study.trials([name])
        states = [todo.found[trial.folder] for trial in trials]
        here = [state.record for state in states if state.record and not state.source]
        found = [record.result.train_seconds for record in here]
        known = [value for value in found if value]
        experiment = Experiment(todo.study.name, trials[0].spec, todo.study.path)
        seconds[name] = (
            sum(known) / len(known) if known else make_estimate(experiment, options.device).seconds
        )
    count = max(1, min(worker_count(todo.study, options), len(todo.trials)))
    total = sum(seconds[trial.variant] for trial in todo.trials) / count
    return StudyEstimate(by_variant=seconds, total=total, count=count)
