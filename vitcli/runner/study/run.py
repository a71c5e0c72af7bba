"""Training of the trials that a study still needs."""

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
from vitcli.runner.files import commit_json, make_output_folder
from vitcli.runner.run.folder import RESULT_STATES, RunDir, hold_folder
from vitcli.runner.run.listing import is_in_use
from vitcli.runner.study.definition import PLAN, Trial
from vitcli.runner.study.plan import Options, StudyPlan, current_states, worker_count
from vitcli.runner.study.saved import save_trial
from vitcli.runner.study.states import TrialState, trial_state
from vitcli.runner.study.worker import GRACE_SECONDS
from vitcli.runner.study.workers import Job, LocalEngine
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, Started, Stopping, TrialEvent
from vitcli.runner.train.signals import StopFlag

ORPHAN_SECONDS = GRACE_SECONDS + 5
"""Time that the workers of a killed driver may take to release their trials."""


def run_study(
    plan: StudyPlan, options: Options, on_event: Callable[[TrialEvent], None]
) -> dict[str, TrialState]:
    """Train the trials of a plan; return the state of every trial afterwards.

    Raises:
        InUseError: Another process runs this study.
        StoppedError: A signal stopped the study; every trial can be continued.
        PartlyError: The time budget was used up.
    """
    full_checkpoints = _find_full_checkpoints(plan)
    if not (plan.trials or full_checkpoints):
        return plan.states
    from vitcli.runner.run.checkpoint import keep_weights
    from vitcli.runner.study.gpu_memory import limit_workers

    def note(text: str) -> None:
        on_event(TrialEvent("", Message(text=text)))

    make_output_folder(plan.root)
    with hold_folder(plan.root, "another process is running this study"):
        for checkpoints in full_checkpoints:
            keep_weights(checkpoints)
        if not plan.trials:
            return plan.states
        _wait_for_orphans(plan)
        count = limit_workers(plan, options, worker_count(plan.study, options), note)
        _check_disk(plan, count)
        write_plan(plan, options)
        for trial in plan.trials:
            if trial.folder in plan.replaced:
                _delete_folder(plan.root / trial.folder)
            else:
                _keep_stale_trial(plan, trial, on_event)
        _train(plan, options, count, on_event)
        return current_states(plan)


def _find_full_checkpoints(plan: StudyPlan) -> list[Path]:
    """Return checkpoints of finished trials whose worker died before reducing them to weights."""
    from vitcli.runner.run.checkpoint import TENSORS

    own = {folder: state for folder, state in plan.states.items() if not state.source}
    finished = [folder for folder, state in own.items() if state.state == "finished"]
    folders = [RunDir(plan.root / f).checkpoints for f in finished if f not in plan.replaced]
    return [folder for folder in folders if any(folder.glob(f"*/{TENSORS}"))]


def _delete_folder(folder: Path) -> None:
    """Delete a folder in one step; a half-deleted folder would look like other files."""
    trash = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(trash, ignore_errors=True)
    folder.rename(trash)
    shutil.rmtree(trash)


def _wait_for_orphans(plan: StudyPlan) -> None:
    until = time.monotonic() + ORPHAN_SECONDS
    for trial in plan.trials:
        run = RunDir(plan.root / trial.folder)
        while is_in_use(run):
            if time.monotonic() > until:
                raise InUseError(f"{run.path}: another process is training this trial")
            time.sleep(0.2)


def _check_disk(plan: StudyPlan, count: int) -> None:
    """Refuse to train without disk space.

    The space covers the final weights of each trial, and three checkpoints of each running trial.
    """
    largest = max(plan.parameters.values())
    needed = plan.disk_bytes + count * 3 * 12 * largest
    free = shutil.disk_usage(plan.root).free
    if needed > free:
        raise ResourceError(
            f"{plan.root}: training {quantity(len(plan.trials), 'trial')} needs"
            f" {needed / 1e9:.2f} GB of disk space, only"
            f" {free / 1e9:.2f} GB are free; free some space, or choose another folder with -o"
        )


def write_plan(plan: StudyPlan, options: Options) -> None:
    """Write everything that a worker needs to know, before the first worker starts."""
    study = plan.study
    trials = {
        trial.folder: {
            "variant": trial.variant,
            "setting": trial.setting,
            "config_hash": config_hash(trial.spec),
            "config": trial.spec.model_dump(mode="json"),
        }
        for trial in study.trials()
    }
    content = {
        "study": study.name,
        "threads": study.threads,
        "device": options.device,
        "data_dir": str(options.data_dir.resolve()) if options.data_dir else None,
        "offline": options.offline,
        "command": options.command,
        "parameters": plan.parameters,
        "data_hash": kept_data_hash(plan),
        "trials": trials,
    }
    commit_json(plan.root / PLAN, content)


def kept_data_hash(plan: StudyPlan) -> str | None:
    """Return the hash of the images of the results that are kept; None without such results."""
    kept = [state for folder, state in plan.states.items() if folder not in plan.replaced]
    return next((state.record.data_hash for state in kept if state.record), None)


def _keep_stale_trial(
    plan: StudyPlan, trial: Trial, on_event: Callable[[TrialEvent], None]
) -> None:
    """Keep a stale trial under another name, because it may have taken hours."""
    state = plan.states[trial.folder]
    if state.state != "stale":
        return
    path = plan.root / trial.folder
    number = 1
    while (target := path.with_name(f"{path.name}.stale{number}")).exists():
        number += 1
    path.rename(target)
    text = f"stale, kept as {target.name}: {state.reason}"
    on_event(TrialEvent(trial.folder, Message(text=text)))


def _train(
    plan: StudyPlan, options: Options, count: int, on_event: Callable[[TrialEvent], None]
) -> None:
    from vitcli.runner.machine.device import pick_device

    jobs = [Job(trial.folder) for trial in plan.trials]
    pin = options.pin and pick_device(options.device).type == "cpu"
    engine = LocalEngine(plan.root, jobs, count=count, threads=plan.study.threads, pin=pin)
    deadline = time.monotonic() + options.budget if options.budget else None
    is_late = has_begun = False
    with StopFlag() as stop, contextlib.ExitStack() as closing:

        def tick() -> None:
            nonlocal is_late
            is_late = is_late or (deadline is not None and time.monotonic() > deadline)
            if (is_late or stop.number) and not engine.stopping:
                on_event(TrialEvent("", Stopping()))
                engine.stop()

        events = engine.events(tick)
        closing.callback(events.close)
        for trial_event in events:
            event = trial_event.event
            has_begun = has_begun or isinstance(event, Started)
            if isinstance(event, Ended) and event.state == "failed":
                _mark_failed(RunDir(plan.root / trial_event.folder), event.reason)
                if event.stage == "data" and not has_begun:
                    raise _error_of(event)
                if options.fail_fast:
                    engine.stop()
            on_event(trial_event)
    if stop.number or is_late:
        _raise_unless_done(plan, options, stop.number)


def _mark_failed(run: RunDir, reason: str) -> None:
    """Write the reason of a failure into the run folder, where a killed worker left "running"."""
    with contextlib.suppress(OSError):  # the other trials continue even on a full disk
        if run.exists and run.status()["state"] == "running":
            run.set_status("failed", run.last_step(), reason)


def _error_of(event: Ended) -> UserError:
    """Return the error that ended a trial."""
    kinds: Mapping[int, type[UserError]] = {2: ConfigError, 5: ResourceError}
    return kinds.get(event.exit or 4, InputError)(event.reason)


def _raise_unless_done(plan: StudyPlan, options: Options, number: int | None) -> None:
    """Raise an error that says how to continue, unless every trial has a result."""
    states = current_states(plan)
    done = sum(state.state in RESULT_STATES for state in states.values())
    if done == len(states):
        return
    text = f"{done} of {quantity(len(states), 'trial')} done. Continue: {options.command}"
    if number:
        raise StoppedError(f"stopped; {text}", number)
    raise PartlyError(f"the budget is used up; {text}")


def save_results(plan: StudyPlan, target: Path, folder: str | None = None) -> None:
    """Save results of the study's own folder to ``target``: one trial's, or all that are kept."""
    for trial in plan.study.trials(plan.names):
        if trial.folder == folder or (folder is None and trial.folder not in plan.replaced):
            run = RunDir(plan.root / trial.folder)
            record = trial_state(trial, run, plan.study.threads).record
            if record:
                replace = trial.folder in plan.replaced or trial.variant in plan.rerun
                save_trial(target, plan.study.name, trial, run, record, replace=replace)
