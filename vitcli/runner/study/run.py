"""Training of the trials that a study still needs."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.drivers import PLAN, join_drivers, other_drivers, prepare_folder
from vitcli.runner.engines.local import Setup
from vitcli.runner.engines.worker import GRACE_SECONDS
from vitcli.runner.errors import InUseError
from vitcli.runner.experiment import own_code
from vitcli.runner.files import (
    commit_json,
    free_name,
    make_folder,
    make_output_folder,
    readable_json,
    require_utf8,
)
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.listing import remove_run
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.collect import read_recorded_plan, recorded_plan, trained_seeds
from vitcli.runner.study.definition import Trial, default_root
from vitcli.runner.study.plan import (
    Options,
    StudyWork,
    current_states,
    kept_data_hash,
    worker_count,
)
from vitcli.runner.study.saved import save_trial
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, TrialEvent

ORPHAN_SECONDS = GRACE_SECONDS + 5
"""Time that the worker of a killed driver may take to release its trial."""


def run_study(
    work: StudyWork,
    options: Options,
    on_event: Callable[[TrialEvent], None],
    *,
    save: Path | None = None,
) -> dict[str, RunRecord]:
    if save:
        make_folder(save)
        save_results(work, save)

    def send(found: TrialEvent) -> None:
        on_event(found)
        if save and isinstance(found.event, Ended):
            save_results(work, save, found.folder)

    if not work.trials and _is_written(work):
        return work.states

    def note(text: str) -> None:
        on_event(TrialEvent("", Message(text=text)))

    require_utf8(work.root)
    make_output_folder(work.root)
    with join_drivers(work.root) as driver:
        with prepare_folder(work.root):
            has_others = other_drivers(work.root, own=driver) > 0
            if not work.trials:
                write_plan(work, options, keep=has_others)
                if save:
                    save_results(work, save)
                return work.states
            if has_others:
                note("another process trains this study, too; each trial is trained once")
            setup = setup_of(options, work.study.threads, driver)
            write_plan(work, options, keep=has_others)
            for trial in work.trials:
                _clear_folder(work, trial, on_event)
        return _drive(work, options, setup, send)


def _drive(
    work: StudyWork, options: Options, setup: Setup, on_event: Callable[[TrialEvent], None]
) -> dict[str, RunRecord]:
    max_failures = 1 if options.fail_fast else None
    drive = Drive(work.root, setup, on_event, budget=options.budget, max_failures=max_failures)
    drive.run([trial.folder for trial in work.trials])
    states = current_states(work)
    done = sum(record.has_result for record in states.values())
    if drive.is_stopped() and done < len(states):
        text = f"{done} of {quantity(len(states), 'trial')} done. Continue: {options.command}"
        raise drive.stopped_error(text)
    return states


def setup_of(options: Options, threads: int, driver: int, **request: Any) -> Setup:
    """Return how a driver trains; ``request`` has further fields of the plan."""
    from vitcli.runner.machine.device import pick_device

    return Setup(
        threads=threads,
        count=worker_count(threads, options),
        pin=options.pin and pick_device(options.device).type == "cpu",
        request=options.request() | request,
        driver=driver,
    )


def _clear_folder(work: StudyWork, trial: Trial, on_event: Callable[[TrialEvent], None]) -> None:
    """Delete the old result of a trial of --rerun; keep a stale trial under another name.

    A stale trial may have taken hours. Nothing happens to one that another process trains.
    """
    run = RunDir(work.root / trial.folder)
    if run.exists and trial.folder in work.replaced:
        with run.lock(timeout=ORPHAN_SECONDS):
            # A half-deleted run under its own name would look like other files.
            run.path.rename(trash := free_name(run.path, "old"))
            left = [str(trash)] if trash.is_symlink() else remove_run(trash)
        for path in left:
            text = f"not removed, because vitcli did not write it: {path}"
            on_event(TrialEvent(trial.folder, Message(text=text)))
    elif run.exists and work.states[trial.folder].state == "stale":
        move_stale(trial, run, work.study.threads, on_event)


def move_stale(
    trial: Trial,
    run: RunDir,
    threads: int,
    on_event: Callable[[TrialEvent], None],
    split: str = "test",
) -> None:
    with contextlib.suppress(InUseError), run.lock(timeout=0):
        record = trial_state(trial, run, threads, split)
        if record.state == "stale":  # no other driver was here first
            target = free_name(run.path, "stale")
            run.path.rename(target)
            text = f"stale, kept as {target.name}: {record.reason}"
            on_event(TrialEvent(trial.folder, Message(text=text)))


def write_plan(work: StudyWork, options: Options, *, keep: bool = False) -> None:
    """Write what a worker must know; with ``keep``, the trials of another driver stay in it."""
    study = work.study
    content = {
        "study": study.name,
        "threads": study.threads,
        **options.request(),
        "parameters": work.parameters,
        "data_hash": kept_data_hash(work),
        "planned": recorded_plan(study, work.root, work.saved).model_dump(mode="json"),
        "saved": [folder for folder, state in work.states.items() if state.source],
        "rerun": list(work.rerun),
    }
    commit_plan(work.root, content, study.trials(), keep=keep)


def commit_plan(root: Path, facts: dict[str, Any], trials: Sequence[Trial], *, keep: bool) -> None:
    """Write a plan and the own code of its trials; ``keep`` is that of ``write_plan``."""
    kept = readable_json(root / PLAN).get("trials", {}) if keep else {}
    entries = {trial.folder: plan_entry(trial) for trial in trials}
    for spec in {trial.variant: trial.spec for trial in trials}.values():
        own_code.save_copies(spec, root)
    commit_json(root / PLAN, facts | {"trials": kept | entries})


def plan_entry(trial: Trial) -> dict[str, Any]:
    return {
        "variant": trial.variant,
        "setting": trial.setting,
        "config_hash": trial.config_hash,
        "config": trial.spec.model_dump(mode="json"),
    }


def _is_written(work: StudyWork) -> bool:
    stored = readable_json(work.root / PLAN)
    taken = {folder for folder, state in work.states.items() if state.source}
    return (
        work.states.keys() <= {*stored.get("trials", ())}
        and taken <= {*stored.get("saved", ())}
        and work.planned == read_recorded_plan(work.root)
    )


def save_results(work: StudyWork, target: Path, folder: str | None = None) -> None:
    """Save one trial's result to ``target``, or all that are kept, beside the first plan."""
    for trial in work.study.trials(work.names):
        if trial.folder == folder or (folder is None and trial.folder not in work.replaced):
            run = RunDir(work.root / trial.folder)
            record = trial_state(trial, run, work.study.threads)
            if record.has_result:
                replace = trial.folder in work.replaced or trial.variant in work.rerun
                save_trial(target, work.study.name, trial, record, replace=replace)
    is_begun = any(trained_seeds(work.root)) or any(r.has_result for r in work.states.values())
    if is_begun and (planned := read_recorded_plan(work.root)):
        place = target / default_root(work.study).name
        first = read_recorded_plan(place) or planned
        for version in planned.versions:
            first = first.extended(version, planned.order)
        make_folder(place)
        content = {"study": work.study.name, "planned": first.model_dump(mode="json")}
        commit_json(place / PLAN, content)
