"""The state of every trial, from its own folder or from a saved trial. No torch."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vitcli.runner.engines.drivers import rerun_before
from vitcli.runner.evaluate.teacher import other_weights, weights_used
from vitcli.runner.experiment.diff import TEACHER_WEIGHTS, differences, with_data_defaults
from vitcli.runner.experiment.yaml_text import format_value
from vitcli.runner.run.folder import TENSORS, RunDir
from vitcli.runner.run.record import (
    COSTS,
    COUNTS,
    SAVED_NUMBERS,
    TEXTS,
    RunRecord,
    State,
    is_number,
    read_record,
    refuse_unreadable,
    thread_mismatch,
)
from vitcli.runner.study.definition import Study, Trial
from vitcli.runner.study.saved import SavedTrials


def trial_states(
    study: Study,
    root: Path,
    only: Sequence[str] = (),
    saved: SavedTrials | None = None,
    *,
    ignore: Collection[str] = (),
) -> dict[str, RunRecord]:
    """Return trial folder -> record, for every requested trial.

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
    known: dict[str, RunRecord] = {}
    weights: dict[str, str] = {}
    for trial in trials:
        if (record := states[trial.folder]).has_result:
            known.setdefault(trial.spec.train.precision, record)
            weights |= weights_used(record, trial.spec)
    ignored = {*ignore, *rerun_before(root)}
    unfinished = [
        trial
        for trial in trials
        if states[trial.folder].state in ("missing", "stale") and trial.variant not in ignored
    ]
    return states | saved.find_matches(study, unfinished, known, weights)


def trial_without_result(trial: Trial, state: State, reason: str = "") -> RunRecord:
    return RunRecord(
        state=state,
        reason=reason,
        name=trial.folder,
        variant=trial.variant,
        seed=trial.spec.seed,
        config_hash=trial.config_hash,
    )


def trial_state(trial: Trial, run: RunDir, threads: int, split: str = "test") -> RunRecord:
    """Return the record of a trial, which is stale unless its folder holds exactly this trial."""
    if not run.exists:
        return trial_without_result(trial, "missing")
    refuse_unreadable(run)
    record = read_record(run)
    if reason := _other_training(record, trial, threads) or _missing_numbers(record, split):
        return trial_without_result(trial, "stale", reason)
    if not record.has_result:
        return trial_without_result(trial, record.state, record.reason)
    place = run.path / "predictions.npz"
    images, has_images = None, record.state == "finished" and split == "test"
    if has_images:
        try:
            images = record.read_images()
        except FileNotFoundError:
            return trial_without_result(trial, "stale", f"its {place.name} is missing")
        except ValueError as error:
            return trial_without_result(trial, "stale", f"its {place.name}: {error}")
    if record.known_spec is None:  # it has own code, which the study has loaded
        record = record.changed(known_spec=trial.spec)
        with suppress(ValueError):  # an own objective may store something else than it counts
            images = record.read_images() if has_images else None
    return record.changed(
        name=trial.folder,
        metrics=[],
        result=kept_numbers(record),
        images=images,
        stored_predictions=str(place) if images else "",
    )


def _other_training(record: RunRecord, trial: Trial, threads: int) -> str:
    """Return why a folder does not hold a trial; empty if it does."""
    if record.problems:
        return record.reason
    if record.config.get("code", {}) != trial.spec.code:
        return "its own code is not that of the study"
    stored = record.spec
    differing = differences(stored, with_data_defaults(trial.spec, stored, record.meta))
    differing.pop(TEACHER_WEIGHTS, None)
    for name, (there, here) in differing.items():
        return f"{name} is {format_value(there)} in its folder, {format_value(here)} in the study"
    reason = thread_mismatch(record.sessions, threads) or other_weights(record, trial.spec)
    if reason:
        return reason
    if record.has_result:
        is_same = (record.config_hash, record.seed) == (trial.config_hash, trial.spec.seed)
        return "" if is_same else "its meta.json is missing, or it was trained as another trial"
    files = {path.name for path in record.folder.checkpoints.glob("*/*.safetensors")}
    if record.state != "running" and files and TENSORS not in files:  # it has its weights alone
        return "only its final weights are left, so it cannot continue"
    return ""


def _missing_numbers(record: RunRecord, split: str) -> str:
    if record.state != "finished":
        return ""
    headline = record.headline
    if record.number(f"{split}_{headline.name}") is None:
        return f"its result.json has no {split} {headline.label}"
    last = record.metrics[-1] if record.metrics else {}
    if record.number(f"val_{headline.name}") != last.get(f"val_{headline.name}"):
        return f"its validation {headline.label} differs from that of its last epoch"
    return ""


def kept_numbers(record: RunRecord) -> dict[str, Any]:
    if record.state != "finished":
        return {}
    names = [f"{split}_{name}" for split in ("test", "val") for name in record.task.numbers]
    kept: dict[str, Any] = {}
    for name in (*names, *COSTS, *SAVED_NUMBERS):
        value = record.result.get(name)
        if value is not None and name in (*COUNTS, *TEXTS):
            kept[name] = value
        elif is_number(value):
            kept[name] = float(value)
    return kept
