"""Run what a study still needs, and collect what it has found."""

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.config import Experiment, config_hash
from vitcli.runner.errors import (
    ConfigError,
    InputError,
    InUseError,
    PartlyError,
    ResourceError,
    StoppedError,
    UserError,
)
from vitcli.runner.files import commit_json
from vitcli.runner.run_dir import RUNS, RunDir, exclusive
from vitcli.runner.runs import in_use
from vitcli.runner.signals import StopFlag
from vitcli.runner.study.engine import Event, Job, LocalEngine
from vitcli.runner.study.plan import PLAN, Study, Trial, model_sizes
from vitcli.runner.study.saved import SavedTrials, save_trial
from vitcli.runner.study.states import RESULTS, TrialState, trial_state, trial_states
from vitcli.runner.study.worker import GRACE_SECONDS

ORPHAN_SECONDS = GRACE_SECONDS + 5
"""How long the workers of a killed driver may take to let go of their trials."""
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
class Todo:
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


def survey(
    study: Study,
    root: Path,
    only: tuple[str, ...],
    *,
    rerun: Collection[str] = (),
    saved: SavedTrials | None = None,
) -> Todo:
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
    return Todo(
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
    from vitcli.runner.device import pick_device

    if options.jobs:
        return options.jobs
    if pick_device(options.device).type != "cpu":
        return 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 1) // study.threads)


def run_study(
    todo: Todo, options: Options, on_event: Callable[[Event], None]
) -> dict[str, TrialState]:
    """Train what is missing; the state of every trial afterwards.

    Raises:
        InUseError: Another process runs this study.
        StoppedError: A signal came; every trial can be continued.
        PartlyError: The budget was used up.
    """
    left = _with_training_state(todo)
    if not (todo.trials or left):
        return todo.found
    from vitcli.runner.checkpoint import keep_weights

    with exclusive(todo.root, "another process is running this study"):
        for checkpoints in left:
            keep_weights(checkpoints)
        if not todo.trials:
            return todo.found
        _wait_for_orphans(todo)
        _check_disk(todo, worker_count(todo.study, options))
        write_plan(todo, options)
        for trial in todo.trials:
            if trial.folder in todo.replaced:
                _throw_away(todo.root / trial.folder)
            else:
                _set_aside(todo, trial, on_event)
        _train(todo, options, on_event)
        return states_now(todo)


def states_now(todo: Todo) -> dict[str, TrialState]:
    """The state of every trial as it is now."""
    return trial_states(todo.study, todo.root, todo.names, todo.saved, ignore=todo.rerun)


def _with_training_state(todo: Todo) -> list[Path]:
    """Checkpoints of finished trials whose worker was killed before it could slim them."""
    from vitcli.runner.checkpoint import TENSORS

    own = {folder: state for folder, state in todo.found.items() if not state.source}
    finished = [folder for folder, state in own.items() if state.state == "finished"]
    folders = [RunDir(todo.root / f).checkpoints for f in finished if f not in todo.replaced]
    return [folder for folder in folders if any(folder.glob(f"*/{TENSORS}"))]


def _throw_away(folder: Path) -> None:
    """In one step: half a folder would be taken for somebody else's."""
    trash = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)
    shutil.rmtree(trash)


def _wait_for_orphans(todo: Todo) -> None:
    until = time.monotonic() + ORPHAN_SECONDS
    for trial in todo.trials:
        run = RunDir(todo.root / trial.folder)
        while in_use(run):
            if time.monotonic() > until:
                raise InUseError(f"{run.path}: another process is training this trial")
            time.sleep(0.2)


def _check_disk(todo: Todo, count: int) -> None:
    """Final weights for each trial, and three times two checkpoints for those under way."""
    largest = max(todo.parameters.values())
    needed = todo.disk_bytes + count * 3 * 12 * largest
    free = shutil.disk_usage(todo.root).free
    if needed > free:
        raise ResourceError(
            f"{todo.root}: {needed / 1e9:.2f} GB are needed for {len(todo.trials)} trials,"
            f" {free / 1e9:.2f} GB are free; make room, or choose another folder with -o"
        )


def write_plan(todo: Todo, options: Options) -> None:
    """Everything a worker needs to know, before the first one starts."""
    study = todo.study
    trials = {
        trial.folder: {
            "variant": trial.variant,
            "setting": trial.setting,
            "config_hash": config_hash(trial.spec),
            "config": trial.spec.model_dump(mode="json"),
        }
        for trial in study.trials()
    }
    plan = {
        "study": study.name,
        "threads": study.threads,
        "device": options.device,
        "data_dir": str(options.data_dir.resolve()) if options.data_dir else None,
        "offline": options.offline,
        "command": options.command,
        "parameters": todo.parameters,
        "data_hash": data_hash(todo),
        "trials": trials,
    }
    commit_json(todo.root / PLAN, plan)


def data_hash(todo: Todo) -> str | None:
    """Hash of the images that the results which stay were trained on; None where there are none."""
    kept = [state for folder, state in todo.found.items() if folder not in todo.replaced]
    return next((state.record.data_hash for state in kept if state.record), None)


def _set_aside(todo: Todo, trial: Trial, on_event: Callable[[Event], None]) -> None:
    """A stale trial is kept under another name: it may have taken hours."""
    found = todo.found[trial.folder]
    if found.state != "stale":
        return
    path = todo.root / trial.folder
    number = 1
    while (target := path.with_name(f"{path.name}.stale{number}")).exists():
        number += 1
    path.rename(target)
    text = f"stale, kept as {target.name}: {found.reason}"
    on_event({"kind": "message", "folder": trial.folder, "text": text})


def _train(todo: Todo, options: Options, on_event: Callable[[Event], None]) -> None:
    jobs = [Job(trial.folder) for trial in todo.trials]
    count = worker_count(todo.study, options)
    engine = LocalEngine(todo.root, jobs, count=count, threads=todo.study.threads)
    deadline = time.monotonic() + options.budget if options.budget else None
    late = begun = False
    with StopFlag() as stop, contextlib.ExitStack() as closing:

        def tick() -> None:
            nonlocal late
            late = late or (deadline is not None and time.monotonic() > deadline)
            if (late or stop.number) and not engine.stopping:
                on_event({"kind": "stopping"})
                engine.stop()

        events = engine.events(tick)
        closing.callback(events.close)
        for event in events:
            begun = begun or event["kind"] == "started"
            if event["kind"] == "end" and event["state"] == "failed":
                _mark_failed(todo.root, event)
                if event.get("stage") == "data" and not begun:
                    raise _as_error(event)
                if options.fail_fast:
                    engine.stop()
            on_event(event)
    if stop.number or late:
        _tell_stopped(todo, options, stop.number)


def _mark_failed(root: Path, event: Event) -> None:
    """A killed worker leaves "running" behind; the trial says what happened to it."""
    run = RunDir(root / event["folder"])
    with contextlib.suppress(OSError):  # on a full disk, too, the other trials go on
        if run.exists and run.status()["state"] == "running":
            run.set_status("failed", run.last_step(), event["reason"])


def _as_error(event: Event) -> UserError:
    kinds: Mapping[int, type[UserError]] = {2: ConfigError, 5: ResourceError}
    return kinds.get(event.get("exit", 4), InputError)(event["reason"])


def _tell_stopped(todo: Todo, options: Options, number: int | None) -> None:
    found = states_now(todo)
    done = sum(state.state in RESULTS for state in found.values())
    if done == len(found):
        return
    text = f"{done} of {len(found)} trials are done. Continue: {options.command}"
    if number:
        raise StoppedError(f"stopped; {text}", number)
    raise PartlyError(f"the budget is used up; {text}")


def save_results(todo: Todo, target: Path, folder: str | None = None) -> None:
    """Save results of the study's own folder to ``target``: one trial's, or all that are kept."""
    for trial in todo.study.trials(todo.names):
        if trial.folder == folder or (folder is None and trial.folder not in todo.replaced):
            run = RunDir(todo.root / trial.folder)
            record = trial_state(trial, run, todo.study.threads).record
            if record:
                anew = trial.folder in todo.replaced or trial.variant in todo.rerun
                save_trial(target, todo.study.name, trial, run, record, replace=anew)


def saved_for_training(folder: Path, options: Options) -> SavedTrials:
    """Saved trials, of which only those are taken that could have been trained here."""
    from vitcli.runner.datasets import load_data
    from vitcli.runner.device import pick_device, pick_precision, precision_name

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
class Estimate:
    """Seconds a trial of each variant takes, and the whole of what is to do, ``count`` at once."""

    by_variant: dict[str, float]
    total: float
    count: int


def estimate(todo: Todo, options: Options) -> Estimate:
    """As measured where a trial is finished, else timed on a few random images."""
    import torch

    from vitcli.runner.plan import make_plan

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
            sum(known) / len(known) if known else make_plan(experiment, options.device).seconds
        )
    count = max(1, min(worker_count(todo.study, options), len(todo.trials)))
    total = sum(seconds[trial.variant] for trial in todo.trials) / count
    return Estimate(by_variant=seconds, total=total, count=count)
