"""Results of trials that can be committed, and stand in for a training in any study. No torch.

A saved trial is two files: a JSON file, its record with a hash over it, and an ``.npz`` with the
label, the prediction and the probability of the label of each test image. It is found by
configuration hash and seed, whatever study it was trained for.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.core.tasks.rows import task_row
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.files import commit, make_folder, sha256, to_hashed_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import condensed
from vitcli.runner.study.definition import Trial
from vitcli.runner.study.records import TrialRecord, other_threads
from vitcli.runner.text import portable_fields

FORMAT = 1
SAVED = Path("experiments/results/trials")
"""Where ``ablate`` looks for saved trials without being told."""


class SavedTrials:
    """The saved trials below a folder.

    Args:
        folder: Every JSON file in it and below is read.
        precision_of: The precision in which an experiment would be trained here; unless given,
            results are only looked at, and the first one decides.
        data_hash_of: The hash of the images here, None where they cannot be had. It is asked only
            for image folders, whose contents their names do not tell.

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
        self._records: dict[tuple[str, int], list[TrialRecord]] = {}
        for path in sorted(folder.rglob("*.json")):
            record = read_saved(path)
            self._records.setdefault((record.config_hash, record.seed), []).append(record)
        self.refused: dict[str, str] = {}
        """Trial folder -> why its saved result was not taken."""

    def fitting(
        self, trials: Sequence[Trial], own: Sequence[TrialRecord], threads: int
    ) -> dict[str, TrialRecord]:
        """Trial folder -> its saved record, where configuration, data and precision are the same.

        Args:
            trials: Those that have no result yet.
            own: The results that the study has, which saved ones must agree with.
            threads: CPU threads of a trial in this study.
        """
        taken: dict[str, TrialRecord] = {}
        self.refused = {}
        for trial in trials:
            reasons = []
            for record in self._records.get((config_hash(trial.spec), trial.spec.seed), ()):
                others = [*own, *taken.values()]
                reason = self._difference(trial, record, next(iter(others), record), threads)
                if not reason:
                    taken[trial.folder] = record
                    break
                reasons.append(reason)
            if reasons and trial.folder not in taken:
                self.refused[trial.folder] = reasons[0]
        return taken

    def _difference(
        self, trial: Trial, record: TrialRecord, other: TrialRecord, threads: int
    ) -> str:
        """Why a saved record does not stand in for a training here; nothing where it does."""
        here = self._precision_of(trial.spec) if self._precision_of else other.precision
        for precision in (here, other.precision):
            if record.precision != precision:
                return f"saved in {record.precision}, here in {precision}"
        hashes = {other.data_hash}
        if self._data_hash_of and ":" in trial.spec.data.name:
            hashes.add(self._data_hash_of(trial.spec.data) or record.data_hash)
        if hashes != {record.data_hash}:
            return f"trained on other images ({record.data_hash[:12]})"
        return other_threads(record.sessions, threads)


def read_saved(path: Path) -> TrialRecord:
    """The record in ``seed0.json``, after checking it and the predictions beside it.

    Raises:
        InputError: One of the two files is missing or damaged, or of a later format.
    """
    try:
        content = path.read_bytes()
        value: dict[str, Any] = json.loads(content)
        if isinstance(value, dict) and "record" not in value:
            raise InputError(f"{path}: not a saved trial; keep those in a folder of their own")
        if value.get("format") != FORMAT:
            raise InputError(f"{path}: not a saved trial of format {FORMAT}; update vitcli")
        value.pop("sha256", None)
        predictions = value["predictions_sha256"]
        if content != to_hashed_json(value):
            raise ValueError("it does not match its hash")
        if predictions and sha256(path.with_suffix(".npz").read_bytes()) != predictions:
            raise ValueError("its predictions do not match their hash")
        return TrialRecord.model_validate_json(json.dumps(value["record"]))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        problem = "damaged" if isinstance(error, ValidationError) else f"damaged ({error})"
        raise InputError(f"{path}: {problem}; restore it, or delete it") from error


def save_trial(
    folder: Path, study: str, trial: Trial, run: RunDir, record: TrialRecord, *, replace: bool
) -> Path:
    """Write a trial's two files below ``folder/study/variant/``; the one with the record.

    The file name depends on configuration, data and precision, so machines do not overwrite each
    other's results. An existing file is kept unless ``replace`` is set.
    """
    key = sha256("/".join((record.config_hash, record.data_hash, str(record.precision))).encode())
    target = folder / study / f"{trial.folder}-{key[:8]}.json"
    if target.exists() and not replace:
        return target
    make_folder(target.parent)
    target.unlink(missing_ok=True)  # predictions without a record are no saved trial
    digest = None
    if record.state == "finished":
        content = (run.path / "predictions.npz").read_bytes()
        predictions = condensed(content, task_row(trial.spec))
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
