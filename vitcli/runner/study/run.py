"""Train the trials that a study still needs."""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vitcli.runner.errors import (
    ConfigError,
    InputError,
    InUseError,
    PartlyError,
    ResourceError,
    StoppedError,
    UserError,
)
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir, hold_folder
from vitcli.runner.run.listing import is_in_use
from vitcli.runner.study.definition import PLAN, Trial
from vitcli.runner.study.plan import Options, StudyPlan, states_now, worker_count
from vitcli.runner.study.saved import save_trial
from vitcli.runner.study.states import RESULTS, TrialState, trial_state
from vitcli.runner.study.worker import GRACE_SECONDS
from vitcli.runner.study.workers import Job, LocalEngine, TrialEvent
from vitcli.runner.train.events import Ended, Message, Started, Stopping
from vitcli.runner.train.signals import StopFlag

ORPHAN_SECONDS = GRACE_SECONDS + 5
"""How long the workers of a killed driver may take to let go of their trials."""


def run_study(
    todo: StudyPlan, options: Options, on_event: Callable[[TrialEvent], None]
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
    from vitcli.runner.run.checkpoint import keep_weights

    with hold_folder(todo.root, "another process is running this study"):
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


def _with_training_state(todo: StudyPlan) -> list[Path]:
    """Checkpoints of finished trials whose worker was killed before it could slim them."""
    from vitcli.runner.run.checkpoint import TENSORS

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


def _wait_for_orphans(todo: StudyPlan) -> None:
    until = time.monotonic() + ORPHAN_SECONDS
    for trial in todo.trials:
        run = RunDir(todo.root / trial.folder)
        while is_in_use(run):
            if time.monotonic() > until:
                raise InUseError(f"{run.path}: another process is training this trial")
            time.sleep(0.2)


def _check_disk(todo: StudyPlan, count: int) -> None:
    """Final weights for each trial, and three times two checkpoints for those under way."""
    largest = max(todo.parameters.values())
    needed = todo.disk_bytes + count * 3 * 12 * largest
    free = shutil.disk_usage(todo.root).free
    if needed > free:
        raise ResourceError(
            f"{todo.root}: {needed / 1e9:.2f} GB are needed for {len(todo.trials)} trials,"
            f" {free / 1e9:.2f} GB are free; make room, or choose another folder with -o"
        )


def write_plan(todo: StudyPlan, options: Options) -> None:
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


def data_hash(todo: StudyPlan) -> str | None:
    """Hash of the images that the results which stay were trained on; None where there are none."""
    kept = [state for folder, state in todo.found.items() if folder not in todo.replaced]
    return next((state.record.data_hash for state in kept if state.record), None)


def _set_aside(todo: StudyPlan, trial: Trial, on_event: Callable[[TrialEvent], None]) -> None:
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
    on_event(TrialEvent(trial.folder, Message(text=text)))


def _train(todo: StudyPlan, options: Options, on_event: Callable[[TrialEvent], None]) -> None:
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
                on_event(TrialEvent("", Stopping()))
                engine.stop()

        events = engine.events(tick)
        closing.callback(events.close)
        for found in events:
            event = found.event
            begun = begun or isinstance(event, Started)
            if isinstance(event, Ended) and event.state == "failed":
                _mark_failed(RunDir(todo.root / found.folder), event.reason)
                if event.stage == "data" and not begun:
                    raise _as_error(event)
                if options.fail_fast:
                    engine.stop()
            on_event(found)
    if stop.number or late:
        _tell_stopped(todo, options, stop.number)


def _mark_failed(run: RunDir, reason: str) -> None:
    """Write into a trial's folder why it failed; a killed worker leaves "running" behind."""
    with contextlib.suppress(OSError):  # on a full disk, too, the other trials continue
        if run.exists and run.status()["state"] == "running":
            run.set_status("failed", run.last_step(), reason)


def _as_error(event: Ended) -> UserError:
    kinds: Mapping[int, type[UserError]] = {2: ConfigError, 5: ResourceError}
    return kinds.get(event.exit or 4, InputError)(event.reason)


def _tell_stopped(todo: StudyPlan, options: Options, number: int | None) -> None:
    found = states_now(todo)
    done = sum(state.state in RESULTS for state in found.values())
    if done == len(found):
        return
    text = f"{done} of {len(found)} trials are done. Continue: {options.command}"
    if number:
        raise StoppedError(f"stopped; {text}", number)
    raise PartlyError(f"the budget is used up; {text}")


def save_results(todo: StudyPlan, target: Path, folder: str | None = None) -> None:
    """Save results of the study's own folder to ``target``: one trial's, or all that are kept."""
    for trial in todo.study.trials(todo.names):
        if trial.folder == folder or (folder is None and trial.folder not in todo.replaced):
            run = RunDir(todo.root / trial.folder)
            record = trial_state(trial, run, todo.study.threads).record
            if record:
                anew = trial.folder in todo.replaced or trial.variant in todo.rerun
                save_trial(target, todo.study.name, trial, run, record, replace=anew)
