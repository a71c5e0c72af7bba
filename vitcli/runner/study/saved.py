"""Results of trials that can be committed, and stand in for a training in any study. No torch.

A saved trial is two files: ``seed0.json``, its record with a hash over it, and ``seed0.npz`` with
the label, the prediction and the probability of the label of each test image. It is found by
configuration hash and seed, whatever study it was trained for.
"""

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.compare import changed_fields
from vitcli.runner.config import config_hash
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit, make_folder, sealed, sha256
from vitcli.runner.predictions import read_predictions
from vitcli.runner.results import plain
from vitcli.runner.run_dir import RunDir
from vitcli.runner.study.plan import Trial
from vitcli.runner.study.records import TrialRecord, other_threads

FORMAT = 1
SAVED = Path("experiments/results/trials")
"""Where ``ablate`` looks for saved trials without being told."""


class SavedTrials:
    """The saved trials below a folder.

    Args:
        folder: Every file in it and below is read.
        precision_of: The precision in which a trial would be trained here; saved ones in another
            are not taken. Unless given, the first trial decides for all.

    Raises:
        InputError: A file is damaged.
    """

    def __init__(
        self, folder: Path, precision_of: Callable[[ExperimentSpec], str] | None = None
    ) -> None:
        self.folder, self._precision_of = folder, precision_of
        records = [read_saved(path) for path in sorted(folder.rglob("*.json"))]
        self._records = {(record.config_hash, record.seed): record for record in records}
        self.refused: dict[str, str] = {}
        """Trial folder -> why its saved result was not taken."""

    def fitting(
        self, trials: Sequence[Trial], own: Sequence[TrialRecord], threads: int
    ) -> dict[str, TrialRecord]:
        """Trial folder -> its saved record, where configuration, data and precision are the same.

        Args:
            trials: Those that have no result yet.
            own: The results that the study has, whose data and precision count.
            threads: CPU threads of a trial in this study.
        """
        taken: dict[str, TrialRecord] = {}
        self.refused = {}
        for trial in trials:
            record = self._records.get((config_hash(trial.spec), trial.spec.seed))
            if record is None:
                continue
            first = next(iter([*own, *taken.values()]), record)
            wanted = self._precision_of(trial.spec) if self._precision_of else first.precision
            if record.precision != wanted:
                self.refused[trial.folder] = f"saved in {record.precision}, here in {wanted}"
            elif record.data_hash != first.data_hash:
                self.refused[trial.folder] = f"trained on other images ({record.data_hash[:12]})"
            elif reason := other_threads(record.sessions, threads):
                self.refused[trial.folder] = reason
            else:
                taken[trial.folder] = record
        return taken


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
        if content != sealed(value):
            raise ValueError("it does not match its hash")
        if predictions and sha256(path.with_suffix(".npz").read_bytes()) != predictions:
            raise ValueError("its predictions do not match their hash")
        return TrialRecord.model_validate_json(json.dumps(value["record"]))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        problem = "damaged" if isinstance(error, ValidationError) else f"damaged ({error})"
        raise InputError(f"{path}: {problem}; restore it, or delete it") from error


def save_trial(folder: Path, study: str, trial: Trial, run: RunDir, record: TrialRecord) -> Path:
    """Write a trial's two files, ``folder/study/variant/seed0.json`` and ``.npz``."""
    target = folder / study / f"{trial.folder}.json"
    make_folder(target.parent)
    digest = None
    if record.state == "finished":
        predictions = compressed((run.path / "predictions.npz").read_bytes())
        digest = sha256(predictions)
        commit(target.with_suffix(".npz"), predictions)
    value = {
        "format": FORMAT,
        "study": study,
        "variant": trial.variant,
        "config": plain(changed_fields(trial.spec)),
        "record": record.model_dump(mode="json"),
        "predictions_sha256": digest,
    }
    commit(target, sealed(value))
    return target


def compressed(predictions: bytes) -> bytes:
    """``label``, ``prediction`` and ``probability`` (of the label, float16) of each image (N,)."""
    logits, labels = read_predictions(predictions)
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True).astype(np.float64))
    share = shifted[np.arange(len(labels)), labels] / shifted.sum(axis=1)
    kind = np.min_scalar_type(logits.shape[1] - 1)
    with io.BytesIO() as file:
        np.savez_compressed(
            file,
            label=labels.astype(kind),
            prediction=logits.argmax(axis=1).astype(kind),
            probability=share.astype(np.float16),
        )
        return file.getvalue()
