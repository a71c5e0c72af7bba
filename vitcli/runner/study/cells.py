"""What lies on disk for each trial of a study, and the document that this makes. No torch."""

import io
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vitcli.runner.compare import changed_fields, differences, filled, readable_metrics
from vitcli.runner.config import config_hash, typed_name
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.results import flow, portable
from vitcli.runner.run_dir import RunDir
from vitcli.runner.runs import live_state
from vitcli.runner.study.document import (
    Candidate,
    State,
    StudyResult,
    TrialResult,
    VariantResult,
)
from vitcli.runner.study.plan import Study, Trial, Variant, is_same_setting, read_plan

DAMAGED = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, ArithmeticError),
    *(NotImplementedError, zipfile.BadZipFile),
)
RESULTS = ("finished", "diverged")
"""States that need no further work."""
Cell = tuple[State, str]
"""A trial's state and the reason for it."""


def state_of(trial: Trial, run: RunDir, threads: int) -> Cell:
    """What a trial's folder holds; one that is not exactly this trial is stale."""
    if not run.exists:
        return "missing", ""
    try:
        cell = _state(trial, run, threads)
        _trial(trial, run, cell)
    except Exception as error:  # whatever a file may hold that was edited or cut short
        return "stale", f"its files are damaged ({type(error).__name__})"
    return cell


def _state(trial: Trial, run: RunDir, threads: int) -> Cell:
    try:
        stored = run.spec()
    except ConfigError as error:
        return "stale", f"its config.yaml cannot be read: {error}"
    meta = run.read("meta.json")
    wanted = filled(trial.spec, stored, meta)
    for field, (there, here) in differences(stored, wanted).items():
        return "stale", f"{field} is {flow(there)} in its folder, {flow(here)} in the study"
    used = {part.get("threads", threads) for part in [meta, *meta.get("sessions", [])]}
    if meta.get("device", "cpu") == "cpu" and used != {threads}:
        count = max(used - {threads})
        return "stale", f"trained with {count} threads; the study fixes {threads}"
    state, reason = live_state(run)
    asked = (config_hash(trial.spec), trial.spec.seed)
    if state in RESULTS and (meta.get("config_hash"), meta.get("seed")) != asked:
        return "stale", "its meta.json is missing, damaged or another trial's"
    if state != "finished":
        return state, reason  # type: ignore[return-value]
    return _check_result(run)


def _check_result(run: RunDir) -> Cell:
    """A finished trial whose accuracies are those of its predictions and of its last epoch."""
    result = run.read("result.json")
    accuracy = result.get("test_accuracy")
    if not isinstance(accuracy, float | int):
        return "failed", "its result.json is missing or damaged"
    try:
        predicted, count = accuracy_of(run.path / "predictions.npz")
    except DAMAGED:
        return "stale", "its predictions.npz is missing or damaged"
    if not (abs(predicted - accuracy) <= 1e-6 and count == result.get("num_test")):
        return "stale", f"its result.json says {accuracy:.4f}, its predictions {predicted:.4f}"
    val = result.get("val_accuracy")
    last = (readable_metrics(run) or [{}])[-1]
    if val != last.get("val_accuracy") or not isinstance(val, float | int | None):
        return "stale", "its validation accuracy is not that of its last epoch"
    return "finished", ""


def accuracy_of(path: Path) -> tuple[float, int]:
    """Share of the stored logits (N, K) whose largest is at the label (N,), and N."""
    import numpy as np

    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
        labels = file["labels"]
        return float((file["logits"].argmax(1) == labels).sum()) / len(labels), len(labels)


def read_results(study: Study, root: Path, only: Sequence[str] = ()) -> StudyResult:
    """The document about what lies in a study's folder now."""
    return collect(study, root, cells(study, root, only), known_parameters(root), only)


def known_parameters(root: Path) -> dict[str, int]:
    """Variant -> parameters, as the plan of an earlier run has them."""
    try:
        return {str(k): int(v) for k, v in read_plan(root)["parameters"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}


def cells(study: Study, root: Path, only: Sequence[str] = ()) -> dict[str, Cell]:
    """Trial folder -> the state of every trial that was asked for."""
    return {
        trial.folder: state_of(trial, RunDir(root / trial.folder), study.threads)
        for trial in study.trials(only)
    }


def collect(
    study: Study,
    root: Path,
    found: Mapping[str, Cell],
    parameters: Mapping[str, int],
    only: Sequence[str] = (),
) -> StudyResult:
    """The document about what is on disk.

    Args:
        study: What was asked.
        root: The study's folder.
        found: Trial folder -> state.
        parameters: Variant -> number of parameters, where known.
        only: Variants to show; all if empty.

    Raises:
        InputError: Trials were trained on different images.
    """
    shown = [variant for variant in study.variants if not only or variant.name in only]
    rows = tuple(_row(study, variant, root, found, parameters) for variant in shown)
    metas = [
        RunDir(root / trial.folder).read("meta.json")
        for trial in study.trials(only)
        if found[trial.folder][0] in RESULTS
    ]
    _refuse_mixed_data(metas, root)
    results = [
        RunDir(root / trial.folder).read("result.json")
        for trial in study.trials(only)
        if found[trial.folder][0] == "finished"
    ]
    base = study.baseline.spec
    sessions = [part for meta in metas for part in [meta, *meta.get("sessions", [])]]
    first = metas[0] if metas else {}
    return StudyResult(
        name=study.name,
        question=study.question,
        command=command(study, only),
        commits=_distinct(part.get("commit") for part in sessions),
        dirty=any(part.get("dirty") for part in sessions),
        date=max((str(part.get("started", ""))[:10] for part in sessions), default=""),
        hardware=_distinct(part.get("hardware") for part in sessions),
        torch=_distinct(part.get("torch") for part in sessions),
        precision=_distinct(result.get("precision") for result in results),
        kernels=_distinct(result.get("kernels") for result in results),
        inexact=_inexact(study.trials(only), root),
        threads=study.threads,
        data=str(portable(base.data.name)),
        data_hash=str(first.get("data_hash", "")),
        num_train=first.get("num_train"),
        num_test=next((r["num_test"] for r in results if r.get("num_test")), None),
        epochs=base.train.epochs,
        num_comparisons=len(study.variants) - 1,
        base_config=_base_config(study),
        reference=study.reference,
        same_setting=is_same_setting(study),
        rows=rows,
    )


def _inexact(trials: Sequence[Trial], root: Path) -> tuple[str, ...]:
    """Folders of trials that were continued under other circumstances."""
    metas = {trial.folder: RunDir(root / trial.folder).read("meta.json") for trial in trials}
    return tuple(folder for folder, meta in metas.items() if meta.get("inexact"))


def _base_config(study: Study) -> dict[str, Any]:
    """The baseline's own fields; of what is tuned each variant has another value."""
    changed = plain(changed_fields(study.baseline.spec.replace(seed=0)))
    return {name: value for name, value in changed.items() if name not in study.tune}


def _distinct(values: Any) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values if value}))


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON gives back unchanged, without folders of this machine."""
    return {
        name: list(value) if isinstance(value, tuple) else portable(value)
        for name, value in fields.items()
    }


def _refuse_mixed_data(metas: Sequence[Mapping[str, Any]], root: Path) -> None:
    hashes = sorted({str(meta.get("data_hash"))[:12] for meta in metas})
    if len(hashes) > 1:
        raise InputError(
            f"{root}: its trials were trained on different images (hashes {', '.join(hashes)});"
            " --rerun trains them all on what is there now"
        )


def command(study: Study, only: Sequence[str] = ()) -> str:
    """What to type to get this table."""
    words = ["vitcli", "ablate", shlex.quote(typed_name(study.path))]
    if study.seeds != study.file_seeds:
        words += ["--seeds", ranges(study.seeds)]
    if only and len(only) < len(study.variants):
        named = [name for name in only if name != study.baseline.name] or list(only)
        words += [word for name in named for word in ("--only", name)]
    return " ".join(words)


def ranges(seeds: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` as ``0-2,5``, which ``--seeds`` reads back."""
    groups: list[list[int]] = []
    for seed in seeds:
        if groups and seed == groups[-1][-1] + 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return ",".join(f"{g[0]}-{g[-1]}" if len(g) > 1 else str(g[0]) for g in groups)


def _row(
    study: Study,
    variant: Variant,
    root: Path,
    found: Mapping[str, Cell],
    parameters: Mapping[str, int],
) -> VariantResult:
    per_setting = [
        [trial for trial in study.trials([variant.name]) if trial.setting == setting]
        for setting, _ in variant.settings
    ]
    results = [
        [_trial(t, RunDir(root / t.folder), found[t.folder]) for t in trials]
        for trials in per_setting
    ]
    candidates: tuple[Candidate, ...] = ()
    index = 0
    chosen: dict[str, Any] | None = None
    if study.tune:
        candidates, best = choose(per_setting, root, found)
        if best is None:  # no choice yet: the row must not show any one setting as the variant
            results = [[_pending(trial) for trial in results[0]]]
        else:
            index, chosen = best, variant.settings[best][0]
    trials = per_setting[index]
    return VariantResult(
        variant=variant.name,
        changes=plain(variant.changes),
        parameters=_measured("parameters", trials, root, found) or parameters.get(variant.name),
        forward_flops=_measured("forward_flops", trials, root, found),
        trials=tuple(results[index]),
        candidates=candidates,
        chosen=chosen,
    )


def _measured(
    name: str, trials: Sequence[Trial], root: Path, found: Mapping[str, Cell]
) -> int | None:
    """A number of the model, as the finished trials counted it."""
    for trial in trials:
        if found[trial.folder][0] == "finished":
            return RunDir(root / trial.folder).read("result.json").get(name)
    return None


def _pending(trial: TrialResult) -> TrialResult:
    done = trial.state in RESULTS
    state: State = "missing" if done else trial.state
    reason = "the settings are not all done" if done else trial.reason
    return TrialResult(seed=trial.seed, state=state, reason=reason, config_hash=trial.config_hash)


def choose(
    per_setting: Sequence[Sequence[Trial]], root: Path, found: Mapping[str, Cell]
) -> tuple[tuple[Candidate, ...], int | None]:
    """The candidates, and the one with the best mean validation accuracy once all are done.

    One that diverged with any seed is taken only where all did.
    """
    candidates, scores = [], []
    for trials in per_setting:
        states = [found[trial.folder][0] for trial in trials]
        results = [RunDir(root / trial.folder).read("result.json") for trial in trials]
        known = [r["val_accuracy"] for r in results if r.get("val_accuracy") is not None]
        whole = set(states) == {"finished"} and len(known) == len(trials)
        mean = fmean(known) if whole else None
        candidates.append(
            Candidate(
                setting=plain(trials[0].setting),
                val_accuracy=mean,
                num_diverged=states.count("diverged"),
            )
        )
        scores.append(-1.0 - states.count("diverged") if mean is None else mean)
    is_done = all(found[t.folder][0] in RESULTS for trials in per_setting for t in trials)
    return tuple(candidates), scores.index(max(scores)) if is_done else None


def _trial(trial: Trial, run: RunDir, cell: Cell) -> TrialResult:
    """A trial's entry; only a finished one has numbers."""
    state, reason = cell
    entry: dict[str, Any] = {
        "seed": trial.spec.seed,
        "state": state,
        "reason": reason,
        "config_hash": config_hash(trial.spec),
    }
    if state not in RESULTS:
        return TrialResult(**entry)
    records = readable_metrics(run)
    split = "val_accuracy" if trial.spec.data.val_split else "test_accuracy"
    entry["epochs"] = records[-1]["epoch"] if records else 0
    entry["curve"] = tuple((r["epoch"], r[split]) for r in records if split in r)
    if state == "finished":
        result = run.read("result.json")
        names = ("test_accuracy", "test_loss", "train_loss", "train_seconds", "images_per_second")
        entry |= {name: result.get(name) for name in names}
    return TrialResult(**entry)
