"""Training of the trials that a study still needs."""

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.drivers import (
    PLAN,
    join_drivers,
    other_drivers,
    prepare_folder,
    read_plan,
)
from vitcli.runner.engines.engine import Setup
from vitcli.runner.engines.slurm import FOLDER as QUEUE
from vitcli.runner.engines.worker import GRACE_SECONDS
from vitcli.runner.errors import InUseError, ResourceError
from vitcli.runner.experiment import own_code
from vitcli.runner.files import commit_json, make_folder, make_output_folder, require_utf8
from vitcli.runner.run.folder import RESULT_STATES, TENSORS, RunDir
from vitcli.runner.run.listing import is_in_use, remove_run
from vitcli.runner.run.record import TrialState
from vitcli.runner.study.collect import (
    as_plan,
    declared_margins,
    read_margins,
    read_recorded_plan,
    recorded_plan,
)
from vitcli.runner.study.definition import Study, Trial
from vitcli.runner.study.plan import Options, StudyPlan, current_states, worker_count
from vitcli.runner.study.result import Plan
from vitcli.runner.study.saved import save_trial
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, TrialEvent

ORPHAN_SECONDS = GRACE_SECONDS + 5
"""Time that the workers of a killed driver may take to release their trials."""


def run_study(
    plan: StudyPlan,
    options: Options,
    on_event: Callable[[TrialEvent], None],
    *,
    save: Path | None = None,
) -> dict[str, TrialState]:
    """Train the trials of a plan; return the state of every trial afterwards."""
    if save:
        make_folder(save)
        save_results(plan, save)

    def send(found: TrialEvent) -> None:
        on_event(found)
        if save and isinstance(found.event, Ended):
            save_results(plan, save, found.folder)

    full_checkpoints = _find_full_checkpoints(plan)
    if not (plan.trials or full_checkpoints) and _is_written(plan):
        return plan.states

    def note(text: str) -> None:
        on_event(TrialEvent("", Message(text=text)))

    require_utf8(plan.root)
    make_output_folder(plan.root)
    with join_drivers(plan.root) as driver:
        with prepare_folder(plan.root):
            _reduce_to_weights(full_checkpoints)
            has_others = other_drivers(plan.root, own=driver) > 0
            keep = has_others or any((plan.root / QUEUE).glob("*.json"))
            if not plan.trials:
                write_plan(plan, options, keep=keep)
                if save:
                    save_results(plan, save)
                return plan.states
            if has_others:
                note("another process trains this study, too; each trial is trained once")
            setup = _set_up(plan, options, driver, note)
            _check_disk(plan, setup.count or len(plan.trials))
            write_plan(plan, options, keep=keep)
            for trial in plan.trials:
                _clear_folder(plan, trial, on_event)
        return _drive(plan, options, setup, send)


def _drive(
    plan: StudyPlan, options: Options, setup: Setup, on_event: Callable[[TrialEvent], None]
) -> dict[str, TrialState]:
    """Train the trials of a plan; return all states."""
    max_failures = 1 if options.fail_fast else None
    drive = Drive(plan.root, setup, on_event, budget=options.budget, max_failures=max_failures)
    drive.run([trial.folder for trial in plan.trials])
    states = current_states(plan)
    done = sum(state.state in RESULT_STATES for state in states.values())
    if drive.is_stopped() and done < len(states):
        text = f"{done} of {quantity(len(states), 'trial')} done. Continue: {options.command}"
        raise drive.stopped_error(text)
    return states


def _set_up(
    plan: StudyPlan, options: Options, driver: int, on_message: Callable[[str], None]
) -> Setup:
    """Return how the engine trains the trials of a plan."""
    count, pin = options.jobs, False
    if options.cluster.engine == "local":
        from vitcli.runner.machine.device import pick_device
        from vitcli.runner.study.estimate import limit_workers

        count = limit_workers(plan, options, worker_count(plan.study, options), on_message)
        pin = options.pin and pick_device(options.device).type == "cpu"
    return Setup(
        threads=plan.study.threads,
        in_process=any(own_code.exists_only_here(t.spec) for t in plan.trials),
        count=count,
        pin=pin,
        request=options.request(),
        driver=driver,
        cluster=options.cluster,
    )


def _reduce_to_weights(folders: list[Path]) -> None:
    from vitcli.runner.run.checkpoint import keep_weights

    for checkpoints in folders:
        with contextlib.suppress(InUseError), RunDir(checkpoints.parent).lock(timeout=0):
            keep_weights(checkpoints)


def _find_full_checkpoints(plan: StudyPlan) -> list[Path]:
    own = {folder: state for folder, state in plan.states.items() if not state.source}
    finished = [folder for folder, state in own.items() if state.state == "finished"]
    folders = [RunDir(plan.root / f).checkpoints for f in finished if f not in plan.replaced]
    return [folder for folder in folders if any(folder.glob(f"*/{TENSORS}"))]


def _delete_folder(folder: Path) -> list[str]:
    """Delete a run under another name, since a half-deleted one would look like other files.

    Returns:
        Links, and files that vitcli did not write; they stay under that name.
    """
    folder.rename(trash := _free_name(folder, "old"))
    return [str(trash)] if trash.is_symlink() else remove_run(trash)


def _free_name(path: Path, word: str) -> Path:
    """Return a path beside another one that does not exist, such as ``seed0.old1``."""
    numbered = (path.with_name(f"{path.name}.{word}{n}") for n in itertools.count(1))
    return next(each for each in numbered if not os.path.lexists(each))


def _clear_folder(plan: StudyPlan, trial: Trial, on_event: Callable[[TrialEvent], None]) -> None:
    """Delete the old result of a trial of --rerun; keep a stale trial under another name.

    Nothing happens to a trial that another process trains.
    """
    run = RunDir(plan.root / trial.folder)
    if not run.exists:
        return
    if trial.folder in plan.replaced:
        with _hold_orphan(run):
            for path in _delete_folder(run.path):
                text = f"not removed, because vitcli did not write it: {path}"
                on_event(TrialEvent(trial.folder, Message(text=text)))
    elif plan.states[trial.folder].state == "stale":
        with contextlib.suppress(InUseError), run.lock(timeout=0):
            _keep_stale_trial(plan, trial, on_event)


def _hold_orphan(run: RunDir) -> contextlib.AbstractContextManager[None]:
    wait_for_orphans([run.path])
    return run.lock()


def wait_for_orphans(folders: Sequence[Path]) -> None:
    """Wait until the workers of a killed driver have released their trials."""
    until = time.monotonic() + ORPHAN_SECONDS
    for run in map(RunDir, folders):
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


def write_plan(plan: StudyPlan, options: Options, *, keep: bool = False) -> None:
    """Write everything that a worker needs to know, before the first worker starts.

    With ``keep``, trials that only the present plan has stay in it: another driver trains them, or
    they wait in a queue of Slurm.
    """
    study = plan.study
    trials = {trial.folder: plan_entry(trial) for trial in study.trials()}
    content = {
        "study": study.name,
        "threads": study.threads,
        **options.request(),
        "parameters": plan.parameters,
        "data_hash": kept_data_hash(plan),
        "planned": _with_seeds(recorded_plan(study, plan.root, plan.saved), study),
        "margins": as_plan(declared_margins(study, plan.root, plan.saved)),
        "trials": (_planned_trials(plan.root) if keep else {}) | trials,
        "saved": [folder for folder, state in plan.states.items() if state.source],
        "rerun": list(plan.rerun),
    }
    for variant in study.variants:
        own_code.save_copies(own_code.code_to_keep(variant.spec), plan.root)
    commit_json(plan.root / PLAN, content)


def plan_entry(trial: Trial) -> dict[str, Any]:
    return {
        "variant": trial.variant,
        "setting": trial.setting,
        "config_hash": trial.config_hash,
        "config": trial.spec.model_dump(mode="json"),
    }


def _with_seeds(planned: Plan, study: Study) -> dict[str, Any]:
    order = dict.fromkeys([*planned.order, *sorted(study.seeds)])
    return planned.replace(order=tuple(order)).model_dump(mode="json")


def _is_written(plan: StudyPlan) -> bool:
    """Return whether the folder has a plan with these trials, saved results and margins."""
    try:
        stored = read_plan(plan.root)
        trials, saved = set(stored["trials"]), set(stored["saved"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    taken = {folder for folder, state in plan.states.items() if state.source}
    margins = declared_margins(plan.study, plan.root, plan.saved)
    return (
        plan.states.keys() <= trials
        and taken <= saved
        and margins == read_margins(plan.root)
        and {*plan.study.seeds} <= {*plan.planned.order}
        and plan.planned == read_recorded_plan(plan.root)
    )


def _planned_trials(root: Path) -> dict[str, Any]:
    try:
        return dict(read_plan(root)["trials"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def kept_data_hash(plan: StudyPlan) -> str | None:
    """Return the hash of the images of the results that are kept; None without such results."""
    kept = [state for folder, state in plan.states.items() if folder not in plan.replaced]
    return next((state.record.data_hash for state in kept if state.record), None)


def _keep_stale_trial(
    plan: StudyPlan, trial: Trial, on_event: Callable[[TrialEvent], None]
) -> None:
    """Keep a stale trial under another name, because it may have taken hours."""
    state = trial_state(trial, RunDir(plan.root / trial.folder), plan.study.threads)
    if state.state != "stale":  # another driver was here first
        return
    path = plan.root / trial.folder
    target = _free_name(path, "stale")
    path.rename(target)
    text = f"stale, kept as {target.name}: {state.reason}"
    on_event(TrialEvent(trial.folder, Message(text=text)))


def save_results(plan: StudyPlan, target: Path, folder: str | None = None) -> None:
    """Save results of the study's own folder to ``target``: one trial's, or all that are kept."""
    for trial in plan.study.trials(plan.names):
        if trial.folder == folder or (folder is None and trial.folder not in plan.replaced):
            run = RunDir(plan.root / trial.folder)
            record = trial_state(trial, run, plan.study.threads).record
            if record:
                replace = trial.folder in plan.replaced or trial.variant in plan.rerun
                save_trial(target, plan.study.name, trial, run, record, replace=replace)
    if planned := read_recorded_plan(plan.root):
        make_folder(target / plan.study.name)
        content = {
            "study": plan.study.name,
            "planned": planned.model_dump(mode="json"),
            "margins": as_plan(read_margins(plan.root)),
        }
        commit_json(target / plan.study.name / PLAN, content)
