"""The result files from which verdicts follow."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.claims.item import Finding
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import config_hash, load_experiment
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import read_document

NOT_RUN = "not run: {}"


class Results:
    """The result files of studies and figures in a folder, each read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._studies: dict[str, StudyResult | None] = {}

    def study(self, name: str) -> StudyResult | None:
        """Return the result of a study; None if there is no such file.

        Raises:
            InputError: The file is damaged.
        """
        if name not in self._studies:
            path = self.folder / f"{name}.json"
            with whole(path):
                found = read_document(path.read_text()) if path.exists() else None
                if found and not found.rows:
                    raise ValueError("no rows")
            self._studies[name] = found
        return self._studies[name]

    def figures(self, name: str, what: str) -> dict[str, Any] | None:
        """Return the numbers of ``vitcli visualize`` for a run; None if a figure has none.

        Args:
            name: A run.
            what: The figure whose numbers are needed, ``distance`` or ``faithfulness``.

        Raises:
            InputError: The file is damaged.
        """
        path = self.folder / f"visualize-{name}.json"
        if not path.exists():
            return None
        with whole(path):
            found = dict(json.loads(path.read_text()))
            if not found["hardware"] or not found.get("distance", {"claims": True})["claims"]:
                raise ValueError("no numbers")
        return found if what in found else None

    def stopped_runs(self, experiment: str, epochs: int) -> list[dict[str, Any]]:
        """Return what trainings of an experiment had reached when they stopped after some epochs.

        The file ``<experiment>-<epochs>-epochs.json`` holds a list ``runs`` of the documents that
        ``vitcli train EXPERIMENT --stop-after EPOCHS --json`` prints, one per seed. Their precision
        may be another than the experiment's. Without such a file, the list is empty.

        Raises:
            InputError: The file is damaged, or holds another training, or a seed twice.
        """
        path = self.folder / f"{experiment}-{epochs}-epochs.json"
        if not path.exists():
            return []
        with whole(path):
            runs = [dict(run) for run in json.loads(path.read_text())["runs"]]
            seeds = [_seed_of(run) for run in runs]
            precisions = [str(run["precision"]) for run in runs]
            if not runs:
                raise ValueError("no runs")
        for run, seed, precision in zip(runs, seeds, precisions, strict=True):
            chosen = {"seed": seed, "train.precision": precision}
            spec = load_experiment(experiment, chosen).spec
            wanted = (epochs, spec.train.epochs, config_hash(spec))
            if tuple(map(run.get, ("epochs", "epochs_planned", "config_hash"))) != wanted:
                raise InputError(
                    f"{path}: seed {seed} is not {experiment}, unchanged, stopped after {epochs} of"
                    f" {spec.train.epochs} epochs"
                )
        if len(set(seeds)) < len(seeds):
            raise InputError(f"{path}: a seed is there twice")
        return runs


def _seed_of(run: dict[str, Any]) -> int:
    """Return the seed of a stopped training; raise ValueError if a number is missing or wrong."""
    seed, accuracy, hardware = run["seed"], run["test_accuracy"], run["hardware"]
    is_known = isinstance(hardware, str) and hardware != ""
    if type(seed) is not int or seed < 0 or not 0 <= accuracy <= 1 or not is_known:
        raise ValueError("no result of a training")
    return seed


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into one that names the file."""
    try:
        yield
    except (InputError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path}: damaged; restore it, or delete it") from error


def not_run(reason: str) -> Finding:
    return Finding("no verdict", NOT_RUN.format(reason), "")
