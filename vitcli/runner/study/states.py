"""The state of every trial, from its own folder or from a saved trial. No torch."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitcli.core.spec.task import TaskRow
from vitcli.runner.engines.drivers import rerun_before
from vitcli.runner.errors import ConfigError, InputError, OwnCodeError
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, differences, with_data_defaults
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.run.folder import RESULT_STATES, TENSORS, RunDir
from vitcli.runner.run.listing import live_state
from vitcli.runner.run.predictions import read_per_image
from vitcli.runner.run.record import (
    Meta,
    Record,
    TrialState,
    read_record,
    refuse_unreadable,
    strict_metrics,
    thread_mismatch,
)
from vitcli.runner.study.definition import Study, Trial
from vitcli.runner.study.saved import SavedTrials, other_weights, weights_used


def trial_states(
    study: Study,
    root: Path,
    only: Sequence[str] = (),
    saved: SavedTrials | None = None,
    *,
    ignore: Collection[str] = (),
) -> dict[str, TrialState]:
    """Return trial folder -> state, for every requested trial.

    A missing or stale trial takes the result of a matching saved trial, unless its variant is in
    ``ignore``, or was to be trained again in an earlier call.
    """
    trials = study.trials(only)
    states = {
        trial.folder: trial_state(trial, RunDir(root / trial.folder), study.threads)
        for trial in trials
    }
    if saved is None:
        return states
    own: dict[str, Record] = {}
    weights: dict[str, str] = {}
    for trial in trials:
        if record := states[trial.folder].record:
            own.setdefault(trial.spec.train.precision, record)
            weights |= weights_used(record, trial.spec)
    ignored = {*ignore, *rerun_before(root)}
    unfinished = [
        trial
        for trial in trials
        if states[trial.folder].state in ("missing", "stale") and trial.variant not in ignored
    ]
    return states | saved.find_matches(study, unfinished, own, weights)


def _stale(reason: str) -> TrialState:
    return TrialState(state="stale", reason=reason)


def trial_state(trial: Trial, run: RunDir, threads: int, split: str = "test") -> TrialState:
    """Return the state of a trial's folder, which is stale unless it holds exactly this trial.

    ``split`` is that of its result: a trial of a search has no test images.
    """
    if not run.exists:
        return TrialState(state="missing")
    refuse_unreadable(run)
    try:
        return _read_state(trial, run, threads, split)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        return _stale(f"its files are damaged ({field})")


def _read_state(trial: Trial, run: RunDir, threads: int, split: str) -> TrialState:
    try:
        stored = run.spec()
    except ConfigError as error:
        what = "" if isinstance(error, OwnCodeError) else "its config.yaml cannot be read: "
        return _stale(f"{what}{error}")
    raw = run.read("meta.json")
    meta = Meta.model_validate(raw)
    differing = differences(stored, with_data_defaults(trial.spec, stored, raw))
    differing.pop(TEACHER_WEIGHTS, None)
    for name, (there, here) in differing.items():
        reason = f"{name} is {format_value(there)} in its folder, {format_value(here)} in the study"
        return _stale(reason)
    reason = thread_mismatch((meta, *meta.sessions), threads) or other_weights(meta, trial.spec)
    if reason:
        return _stale(reason)
    state, run_reason = live_state(run)
    if state not in RESULT_STATES:
        files = {path.name for path in run.checkpoints.glob("*/*.safetensors")}
        if state != "running" and files and TENSORS not in files:  # it has its weights alone
            return _stale("only its final weights are left, so it cannot continue")
        return TrialState(state=state, reason=run_reason)  # type: ignore[arg-type]
    if (meta.config_hash, meta.seed) != (trial.config_hash, trial.spec.seed):
        return _stale("its meta.json is missing or damaged, or it was trained as another trial")
    try:
        lines = strict_metrics(run)
    except InputError:
        return _stale("its metrics.jsonl is damaged")
    record = read_record(run, trial.spec, state, run_reason, meta, lines)
    if state == "diverged":
        return TrialState(state=state, reason=run_reason, record=record)
    return _finished(run, record, trial.spec.task.row, lines[-1] if lines else {}, split)


def _finished(
    run: RunDir, record: Record, row: TaskRow, last: Mapping[str, Any], split: str
) -> TrialState:
    name = row.headline.name
    value = record.result.number(f"{split}_{name}")
    if value is None:
        return _stale("its result.json is missing or damaged")
    try:
        images = read_per_image(run.path / "predictions.npz", row) if split == "test" else None
    except (FileNotFoundError, ValueError):
        return _stale("its predictions.npz is missing or damaged")
    if images and not (
        abs(images.mean - value) <= 1e-6 and len(images.scores) == record.result.num_test
    ):
        reason = f"its result.json says {value:.4f}, but its predictions give {images.mean:.4f}"
        return _stale(reason)
    if record.result.number(f"val_{name}") != last.get(f"val_{name}"):
        reason = f"its validation {row.headline.label} differs from that of its last epoch"
        return _stale(reason)
    return TrialState(
        state=record.state,
        reason=record.reason,
        record=record,
        images=images,
        predictions=str(run.path / "predictions.npz") if images else "",
    )
