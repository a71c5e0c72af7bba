"""Saved trials: results to commit, which replace a training in any study. No torch.

A study finds a saved trial by configuration hash and seed, whichever study it was trained for. Its
own trials come first, and of these the newest.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.runner.evaluate.teacher import other_weights, weights_used
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.files import read_bounded
from vitcli.runner.run.predictions import MAX_BYTES, Arrays, condensed, read_outputs
from vitcli.runner.run.record import RunRecord, thread_mismatch
from vitcli.runner.run.store import Entry, read_store, save
from vitcli.runner.study.definition import Study, Trial
from vitcli.runner.text import portable_fields

SAVED = Path("experiments/results/trials")
"""Folder in which ``ablate`` looks for saved trials by default."""


class SavedTrials:
    """The saved trials below a folder; a damaged file is an InputError.

    ``precision_of`` returns the precision in which this machine would train an experiment. Without
    it, the newest result decides. ``data_hash_of`` returns the hash of the images here, or None. It
    is called only for image folders, because their names do not identify the contents.
    """

    def __init__(
        self,
        folder: Path,
        precision_of: Callable[[ExperimentSpec], str] | None = None,
        data_hash_of: Callable[[DataSpec], str | None] | None = None,
    ) -> None:
        self.folder = folder
        self._precision_of, self._data_hash_of = precision_of, data_hash_of
        self._entries: dict[tuple[str, int], list[Entry]] = {}
        self._checked: dict[str, RunRecord] = {}
        for entry in read_store(folder):
            self._entries.setdefault((entry.config_hash, entry.seed), []).append(entry)
        self.refused: dict[str, str] = {}
        """Trial folder -> why its saved trial was not used."""

    def origins(self, trials: Sequence[Trial]) -> dict[int, set[str]]:
        """Return seed -> names of the studies that saved one of these trials."""
        studies: dict[int, set[str]] = {}
        for trial in trials:
            seed = trial.spec.seed
            for entry in self._entries.get((trial.config_hash, seed), []):
                studies.setdefault(seed, set()).add(str(entry.value["study"]))
        return studies

    def _find(self, study: str, trial: Trial) -> list[RunRecord]:
        entries = self._entries.get((trial.config_hash, trial.spec.seed), [])
        entries = sorted(entries, key=lambda entry: entry.started, reverse=True)
        entries.sort(key=lambda entry: entry.value["study"] != study)
        for entry in entries:
            if entry.place not in self._checked:
                self._checked[entry.place] = entry.check(str(self.folder), trial.spec)
        return [self._checked[entry.place] for entry in entries]

    def find_matches(
        self,
        study: Study,
        trials: Sequence[Trial],
        known: Mapping[str, RunRecord],
        weights: Mapping[str, str],
    ) -> dict[str, RunRecord]:
        """Return trial folder -> saved trial that fits it and ``known``, the first results."""
        taken: dict[str, RunRecord] = {}
        known, weights = dict(known), dict(weights)
        self.refused = {}
        for trial in trials:
            for record in self._find(study.name, trial):
                if reason := self._difference(trial, record, known, weights, study.threads):
                    self.refused.setdefault(trial.folder, reason)
                    continue
                self.refused.pop(trial.folder, None)
                taken[trial.folder] = record.changed(name=trial.folder, variant=trial.variant)
                weights |= weights_used(record, trial.spec)
                known.setdefault(trial.spec.train.precision, record)
                break
        return taken

    def _difference(
        self,
        trial: Trial,
        record: RunRecord,
        known: Mapping[str, RunRecord],
        weights: Mapping[str, str],
        threads: int,
    ) -> str:
        alike = known.get(trial.spec.train.precision, record)
        here = self._precision_of(trial.spec) if self._precision_of else alike.precision
        for precision in (here, alike.precision):
            if record.precision != precision:
                return f"saved in {record.precision}, needed in {precision}"
        hashes = {next(iter(known.values()), record).data_hash}
        if self._data_hash_of and ":" in trial.spec.data.name:
            hashes.add(self._data_hash_of(trial.spec.data) or record.data_hash)
        if hashes != {record.data_hash}:
            return f"trained on other images ({record.data_hash[:12]})"
        if reason := thread_mismatch(record.sessions, threads) or other_weights(record, trial.spec):
            return reason
        for run, sha256 in weights_used(record, trial.spec).items():
            if weights.get(run, sha256) != sha256:
                return f"another trial used other weights of {run}"
        return ""


def save_trial(folder: Path, study: str, trial: Trial, record: RunRecord, *, replace: bool) -> None:
    value = {
        "study": study,
        "variant": trial.variant,
        "config": portable_fields(changed_fields(trial.spec)),
        "record": record.saved(),
    }

    def read() -> Arrays:
        content = read_bounded(record.folder.path / "predictions.npz", MAX_BYTES)
        return condensed(read_outputs(content), trial.spec.task.row)

    save(folder, value, read if record.state == "finished" else None, replace=replace)
