"""Saved trials: results to commit, which replace a training in any study. No torch.

A saved trial has two files. The JSON file holds the record and a hash over it. The ``.npz`` file
holds the label, the prediction and the probability of the label for each test image. A study finds
a saved trial by configuration hash and seed, whichever study it was trained for.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.core.spec.task import DEFAULT_TASK, TASKS, TaskRow
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.files import commit, make_folder, read_bounded, sha256, to_hashed_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import MAX_BYTES, condensed, read_outputs
from vitcli.runner.study.definition import Trial
from vitcli.runner.study.images import per_image
from vitcli.runner.study.records import TrialRecord, thread_mismatch
from vitcli.runner.text import portable_fields

FORMAT = 1
SAVED = Path("experiments/results/trials")
"""Folder in which ``ablate`` looks for saved trials by default."""
MAX_RECORD = 1 << 24
"""Largest size of a record in bytes; those of 10,000 epochs are below it."""


@dataclass(frozen=True, kw_only=True)
class SavedTrial:
    """A saved record and the file with its predictions."""

    record: TrialRecord
    predictions: Path


class SavedTrials:
    """The saved trials below a folder.

    Args:
        folder: Every JSON file in it and below is read.
        precision_of: Returns the precision in which this machine would train an experiment. Without
            it, results are only displayed, and the first result decides the precision.
        data_hash_of: Returns the hash of the images here, or None if there are no images. It is
            called only for image folders, because their names do not identify the contents.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(
        self,
        folder: Path,
        precision_of: Callable[[ExperimentSpec], str] | None = None,
        data_hash_of: Callable[[DataSpec], str | None] | None = None,
    ) -> None:
        self.folder = folder
        self._precision_of, self._data_hash_of = precision_of, data_hash_of
        self._records: dict[tuple[str, int], list[SavedTrial]] = {}
        for path in sorted(folder.rglob("*.json")):
            if path.name == PLAN:
                continue
            record = read_saved(path)
            if record is None:
                continue
            found = SavedTrial(record=record, predictions=path.with_suffix(".npz"))
            self._records.setdefault((record.config_hash, record.seed), []).append(found)
        self.refused: dict[str, str] = {}
        """Trial folder -> why its saved trial was not used."""

    def find_matches(
        self, trials: Sequence[Trial], own: Sequence[TrialRecord], threads: int
    ) -> dict[str, SavedTrial]:
        """Return trial folder -> saved trial with the same configuration, data and precision.

        Args:
            trials: Trials without a result.
            own: Results of the study itself, which saved records must agree with.
            threads: CPU threads of a trial in this study.
        """
        taken: dict[str, SavedTrial] = {}
        self.refused = {}
        for trial in trials:
            reasons = []
            for found in self._records.get((trial.config_hash, trial.spec.seed), ()):
                others = [*own, *(each.record for each in taken.values()), found.record]
                reason = self._difference(trial, found.record, others[0], threads)
                if not reason:
                    taken[trial.folder] = found
                    break
                reasons.append(reason)
            if reasons and trial.folder not in taken:
                self.refused[trial.folder] = reasons[0]
        return taken

    def _difference(
        self, trial: Trial, record: TrialRecord, other: TrialRecord, threads: int
    ) -> str:
        """Return why a saved record cannot replace a training here; empty if it can."""
        here = self._precision_of(trial.spec) if self._precision_of else other.precision
        for precision in (here, other.precision):
            if record.precision != precision:
                return f"saved in {record.precision}, needed in {precision}"
        hashes = {other.data_hash}
        if self._data_hash_of and ":" in trial.spec.data.name:
            hashes.add(self._data_hash_of(trial.spec.data) or record.data_hash)
        if hashes != {record.data_hash}:
            return f"trained on other images ({record.data_hash[:12]})"
        return thread_mismatch(record.sessions, threads)


def read_saved(path: Path) -> TrialRecord | None:
    """Return the record in ``seed0.json`` after checking it and the predictions beside it.

    None if the file is a trial of a search, which has no test score.

    Raises:
        InputError: One of the two files is missing, damaged or of a newer format.
    """
    try:
        content = read_bounded(path, MAX_RECORD)
        value = json.loads(content)
        if isinstance(value, dict) and "search" in value:
            return None
        if isinstance(value, dict) and "record" not in value:
            raise InputError(
                f"{path}: not a saved trial; keep saved trials in a folder of their own"
            )
        if value.get("format") != FORMAT:
            raise InputError(f"{path}: not a saved trial of format {FORMAT}; update vitcli")
        value.pop("sha256", None)
        if content != to_hashed_json(value):
            raise ValueError("it does not match its hash")
        record = TrialRecord.model_validate_json(json.dumps(value["record"]))
        row = TASKS[value["config"].get("task.name", DEFAULT_TASK)]
        _check_numbers(record, row)
        _check_predictions(path.with_suffix(".npz"), value["predictions_sha256"], record, row)
        return record
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = error.args[0] if type(error) is ValueError and error.args else ""
        raise InputError(
            f"{path}: damaged{f' ({what})' if what else ''}; restore it, or delete it"
        ) from error


def _check_numbers(record: TrialRecord, row: TaskRow) -> None:
    """Refuse a record whose main number is missing or impossible."""
    names = [f"{split}_{row.headline.name}" for split in ("test", "val")]
    test, val = map(record.result.number, names)
    if (test is None) != (record.state == "diverged"):
        raise ValueError(f"its state is {record.state}, its {names[0]} is {test}")
    for value in (test, val, *(value for _, value in record.curve)):
        if value is not None and not row.headline.is_possible(value):
            raise ValueError(f"its {row.headline.label} is {value}")


def _check_predictions(path: Path, digest: str | None, record: TrialRecord, row: TaskRow) -> None:
    """Refuse predictions that were changed, that are missing, or that contradict the record."""
    if record.state == "diverged":
        return
    content = read_bounded(path, MAX_BYTES)
    if sha256(content) != digest:
        raise ValueError("its predictions do not match their hash")
    found = per_image(read_outputs(content), row)
    value = record.result.number(f"test_{row.headline.name}")
    if found is None or value is None:
        return
    mean, count = float(found.scores.mean(dtype=np.float64)), len(found.scores)
    rounding = np.finfo(found.scores.dtype.name).eps if found.scores.dtype.kind == "f" else 0.0
    if abs(mean - value) > max(1e-6, rounding * abs(value)):
        text = row.headline.label
        raise ValueError(f"its {text} is {value:.4f}, but its predictions give {mean:.4f}")
    if count != record.result.num_test:
        raise ValueError(
            f"it counts {record.result.num_test} images, but has predictions of {count}"
        )


def save_trial(
    folder: Path, study: str, trial: Trial, run: RunDir, record: TrialRecord, *, replace: bool
) -> Path:
    """Write a trial's two files below ``folder/study/variant/``; return the JSON file's path.

    The file name depends on configuration, data and precision, so machines do not overwrite each
    other's results. An existing file is kept unless ``replace`` is set.
    """
    key = sha256("/".join((record.config_hash, record.data_hash, str(record.precision))).encode())
    target = folder / study / f"{trial.folder}-{key[:8]}.json"
    if target.exists() and not replace:
        return target
    make_folder(target.parent)
    target.unlink(missing_ok=True)  # without its record, a prediction file is ignored
    digest = None
    if record.state == "finished":
        content = (run.path / "predictions.npz").read_bytes()
        predictions = condensed(content, trial.spec.task.row)
        digest = sha256(predictions)
        commit(target.with_suffix(".npz"), predictions)
    value = {
        "format": FORMAT,
        "study": study,
        "variant": trial.variant,
        "config": portable_fields(changed_fields(trial.spec)),
        "record": record.model_dump(mode="json"),
        "predictions_sha256": digest,
    }
    commit(target, to_hashed_json(value))
    return target
