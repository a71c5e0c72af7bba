"""The results of the trials of a search, from their run folders or from saved files. No torch."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.core.spec.metrics import Metric
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit, make_folder, read_bounded, to_hashed_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import as_pairs, readable_metrics
from vitcli.runner.text import portable_fields

FORMAT = 1
TRIALS = "trials"
"""Folder of the run folders, in that of the search."""
TRIAL_FOLDER = re.compile(rf"{TRIALS}/[0-9a-f]{{12}}/seed[0-9]+")
MAX_RECORD = 1 << 24
"""Largest size of a saved trial in bytes; those of 10,000 epochs are below it."""


class SearchTrial(Spec):
    """The result of one training of one configuration."""

    point: dict[str, Any]
    """Dotted field -> value."""
    config_hash: str
    seed: int
    state: Literal["finished", "diverged", "pruned"]
    reason: str = ""
    score: float | None = None
    """Headline number on the validation split after the last epoch."""
    curve: Annotated[tuple[tuple[int, float], ...], BeforeValidator(as_pairs)] = ()
    """(epoch, score)."""
    parameters: int = Field(ge=0)
    forward_flops: int = Field(ge=0)
    train_flops: int | None = Field(None, ge=0)
    train_seconds: float | None = Field(None, ge=0)
    data_hash: str = ""
    num_train: int | None = None
    num_val: int | None = None
    threads: int | None = None
    precision: str | None = None
    hardware: str | None = None
    torch: str | None = None
    commit: str | None = None


def is_trial_folder(folder: object) -> bool:
    """Return whether a stored text can be what ``trial_folder`` returns: no path leads outside."""
    return isinstance(folder, str) and TRIAL_FOLDER.fullmatch(folder) is not None


def trial_folder(digest: str, seed: int) -> str:
    """Return the run folder of a configuration and a seed, relative to that of the search."""
    return f"{TRIALS}/{digest[:12]}/seed{seed}"


def read_trial(
    root: Path, point: Mapping[str, Any], spec: ExperimentSpec, sizes: Any
) -> SearchTrial | None:
    """Return the result in a trial's run folder; None if there is none.

    Args:
        root: The folder of the search.
        point: The point of the space.
        spec: Its configuration.
        sizes: Its ``parameters`` and ``forward_flops``, which a diverged run does not state.
    """
    digest, headline = config_hash(spec), spec.task.row.headline
    run = RunDir(root / trial_folder(digest, spec.seed))
    meta, status = run.read("meta.json"), run.status()
    if (meta.get("config_hash"), meta.get("seed")) != (digest, spec.seed):
        return None
    result = run.read("result.json") if status["state"] == "finished" else {}
    score = result.get(f"val_{headline.name}")
    if status["state"] != "diverged" and score is None:
        return None
    return _make_record(run, point, digest, spec.seed, sizes, headline, score, result)


def pruned_trial(
    root: Path, point: Mapping[str, Any], spec: ExperimentSpec, sizes: Any
) -> SearchTrial | None:
    """Return the record of a trial that was stopped early; None if it has no run folder."""
    digest, headline = config_hash(spec), spec.task.row.headline
    run = RunDir(root / trial_folder(digest, spec.seed))
    if not run.read("meta.json"):
        return None
    found = _make_record(run, point, digest, spec.seed, sizes, headline, None, {})
    last = found.curve[-1][1] if found.curve else None
    epochs = found.curve[-1][0] if found.curve else 0
    return found.replace(state="pruned", score=last, reason=f"stopped after epoch {epochs}")


def _make_record(
    run: RunDir,
    point: Mapping[str, Any],
    digest: str,
    seed: int,
    sizes: Any,
    headline: Metric,
    score: float | None,
    result: Mapping[str, Any],
) -> SearchTrial:
    meta = run.read("meta.json")
    key = f"val_{headline.name}"
    lines = [line for line in readable_metrics(run) if line.get(key) is not None]
    names = ("threads", "precision", "hardware", "torch", "commit", "num_train", "num_val")
    facts: dict[str, Any] = {name: meta.get(name) for name in names}
    return SearchTrial(
        point=dict(point),
        config_hash=digest,
        seed=seed,
        state="diverged" if score is None else "finished",
        reason=run.status()["reason"] if score is None else "",
        score=score,
        curve=[(line["epoch"], line[key]) for line in lines],  # type: ignore[arg-type]
        parameters=sizes.parameters,
        forward_flops=sizes.forward_flops,
        train_flops=result.get("train_flops") or sizes.train_flops,
        train_seconds=result.get("train_seconds"),
        data_hash=meta.get("data_hash") or "",
        **facts,
    )


def saved_path(folder: Path, search: str, trial: SearchTrial) -> Path:
    """Return the file of a saved trial."""
    return folder / search / f"{trial.config_hash[:12]}-seed{trial.seed}.json"


def save_trial(folder: Path, search: str, trial: SearchTrial) -> Path:
    """Write a trial to a small file to commit; an equal configuration and seed replaces it."""
    path = saved_path(folder, search, trial)
    make_folder(path.parent)
    record = trial.model_dump(mode="json") | {"point": portable_fields(trial.point)}
    commit(path, to_hashed_json({"format": FORMAT, "search": search, "trial": record}))
    return path


def read_saved(folder: Path) -> dict[tuple[str, int], SearchTrial]:
    """Return (configuration hash, seed) -> trial for every saved trial below a folder.

    The trials of a final stage, which are those of a study, are left out.

    Raises:
        InputError: A file is damaged, or no saved trial of a search.
    """
    found = {}
    for path in sorted(folder.rglob("*.json")):
        trial = None if path.name == PLAN else read_saved_trial(path)
        if trial:
            found[trial.config_hash, trial.seed] = trial
    return found


def read_saved_trial(path: Path) -> SearchTrial | None:
    """Return the trial in a file that ``save_trial`` wrote; None if it is a trial of a study.

    Raises:
        InputError: The file cannot be read, or its content is not what was written.
    """
    try:
        content = read_bounded(path, MAX_RECORD)
        value = json.loads(content)
        if isinstance(value, dict) and "study" in value:
            return None
        if not isinstance(value, dict) or value.get("format") != FORMAT or "trial" not in value:
            raise InputError(f"{path}: not a saved trial of a search; keep those in a folder alone")
        value.pop("sha256", None)
        if content != to_hashed_json(value):
            raise InputError(f"{path}: it does not match its hash; restore it, or delete it")
        trial = SearchTrial.model_validate_json(json.dumps(value["trial"]))
        _check_score(trial)
        return trial
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, ValidationError) as error:
        raise InputError(f"{path}: damaged; restore it, or delete it") from error


def _check_score(trial: SearchTrial) -> None:
    """Refuse a score that is missing or that its own curve contradicts."""
    if (trial.score is None) != (trial.state == "diverged"):
        raise ValueError
    if trial.score is not None and trial.curve and trial.curve[-1][1] != trial.score:
        raise ValueError
