"""The document of a study: results, before any statistics. No torch."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from vitcli.core.metric import Metric
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.runner.engines.drivers import PLAN, rerun_before
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.config import typed_changes, typed_command, typed_name
from vitcli.runner.experiment.diff import changed_fields, differences
from vitcli.runner.files import read_json, readable_json
from vitcli.runner.run.folder import RESULT_STATES
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.study.definition import (
    EPOCHS,
    Study,
    Trial,
    Variant,
    default_root,
    is_same_setting,
)
from vitcli.runner.study.images import with_scores
from vitcli.runner.study.result import (
    EARLY_STOPPING,
    MIN_PAIRS,
    Candidate,
    Plan,
    StudyResult,
    VariantResult,
)
from vitcli.runner.study.saved import SavedTrials
from vitcli.runner.study.states import trial_states, trial_without_result
from vitcli.runner.text import join_words, portable, portable_fields

States = Mapping[str, RunRecord]
"""Record of each trial, by its folder."""


def study_result(
    variants: Mapping[str, Sequence[RunRecord]],
    *,
    spec: ExperimentSpec | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
    where: object = "",
    **declared: Any,
) -> StudyResult:
    """Return the document of a study; ``declared`` are the fields that the study itself states.

    ``spec`` is that of the baseline, if vitcli has trained it. ``rows`` has further fields of the
    row of a variant, such as the ``trials`` that it shows, if not all.
    """
    if spec:
        declared = {
            "data": str(portable(spec.data.name)),
            "epochs": spec.train.epochs,
            "task": spec.task.name,
            "base_config": portable_fields(changed_fields(spec.replace(seed=0))),
            **declared,
        }
    trained = [record for records in variants.values() for record in records if record.has_result]
    finished = [record for record in trained if record.state == "finished"]
    sessions = [session for record in trained for session in record.sessions]
    has_folds = "data.folds" in declared["base_config"]  # each seed has other test images
    _refuse_mixed_data(trained, where, has_folds=has_folds)
    made, images = [], []
    for variant, records in variants.items():
        fields = {"trials": records, **(rows or {}).get(variant, {})}
        shown = [record for record in fields["trials"] if record.state == "finished"]
        made.append(_row(variant, **fields))
        images.append({} if has_folds else {record.seed: record.images for record in shown})
    if len({row.kernels for row in made if row.kernels}) < 2:
        made = [row.replace(kernels=()) for row in made]
    origin, task = declared.get("origin"), TASKS[declared.get("task", DEFAULT_TASK)]
    headline = origin.metric if origin else task.headline
    return StudyResult(
        commits=_distinct(session.commit for session in sessions),
        dirty=any(session.dirty for session in sessions),
        date=max(((session.started or "")[:10] for session in sessions), default=""),
        hardware=_distinct(session.hardware for session in sessions),
        torch=_distinct(session.torch for session in sessions),
        precision=_distinct(record.result.get("precision") for record in finished),
        kernels=_distinct(record.kernels for record in finished),
        inexact=tuple(record.name for record in trained if record.inexact),
        data_hash=trained[0].data_hash if trained else "",
        num_train=trained[0].num_train if trained else None,
        num_test=next(filter(None, (record.result.get("num_test") for record in finished)), None),
        rows=with_scores(made, images, headline, declared.get("plan")),
        **declared,
    )


def _row(
    variant: str, trials: Sequence[RunRecord], parameters: int | None = None, **fields: Any
) -> VariantResult:
    flops = (record.result.get("forward_flops") for record in trials)
    return VariantResult(
        variant=variant,
        trials=tuple(trials),
        parameters=next(filter(None, (record.parameters for record in trials)), parameters),
        forward_flops=next(filter(None, flops), None),
        kernels=_distinct(record.kernels for record in trials),
        **fields,
    )


def _distinct(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values if value}))


def _refuse_mixed_data(records: Sequence[RunRecord], where: object, *, has_folds: bool) -> None:
    hashes = sorted({record.data_hash[:12] for record in records})
    if len(hashes) > 1:
        raise InputError(
            f"{where}: its trials were trained on different images (hashes {', '.join(hashes)});"
            " train all of them again with --rerun"
        )
    counts = sorted({count for record in records if (count := record.result.get("num_test"))})
    if len(counts) > 1 and not has_folds:
        raise InputError(
            f"{where}: its trials were measured on different numbers of test images"
            f" ({join_words(map(str, counts))}), which cannot be compared; train.limit_batches of a"
            " variant also limits them"
        )


def read_results(
    study: Study,
    root: Path,
    only: Sequence[str] = (),
    saved: SavedTrials | None = None,
    *,
    states: States | None = None,
) -> StudyResult:
    if states is None:
        states = trial_states(study, root, only, saved)
    plan = recorded_plan(study, root, saved)
    parameters = readable_json(root / PLAN).get("parameters", {})
    shown = [variant for variant in study.variants if not only or variant.name in only]
    rows = {variant.name: _declared_row(study, variant, states) for variant in shown}
    trials = {name: [states[trial.folder] for trial in study.trials([name])] for name in rows}
    for name, row in rows.items():
        if {trial.state for trial in trials[name]} - {"missing", "stale"}:
            row["parameters"] = parameters.get(name)
    base = study.baseline.spec
    fields = portable_fields(changed_fields(base.replace(seed=0)))
    return study_result(
        trials,
        rows=rows,
        spec=base,
        where=root,
        name=study.name,
        question=study.question,
        hypothesis=study.hypothesis,
        command=command(study, only),
        threads=study.threads,
        num_comparisons=plan.num_comparisons,
        base_config={name: value for name, value in fields.items() if name not in study.tune},
        reference=study.reference,
        parts=study.parts,
        equal_compute=study.equal_compute,
        same_setting=is_same_setting(study),
        margin=study.equivalence_margin,
        plan=plan,
        other_plan=study.planned_seeds if study.planned_seeds != plan.seeds else None,
    )


def command(study: Study, only: Sequence[str] = ()) -> str:
    """Return the command that prints this table."""
    words = [
        shlex.quote(str(portable(word))) for word in typed_command("ablate", typed_name(study.path))
    ]
    if study.data is not None:
        words += ["--data", shlex.quote(str(portable(study.data)))]
    changes = {field: value for field, value in study.typed.items() if field != "data.name"}
    words += map(shlex.quote, typed_changes(changes, study.options))
    if study.seeds != study.file_seeds:
        words += ["--seeds", ranges(study.seeds)]
    if only and len(only) < len(study.variants):
        named = [name for name in only if name != study.baseline.name] or list(only)
        words += [word for name in named for word in ("--only", name)]
    return " ".join(words)


def ranges(seeds: Sequence[int]) -> str:
    """Return seeds in the format of ``--seeds``: ``(0, 1, 2, 5)`` becomes ``0-2,5``."""
    groups: list[list[int]] = []
    for seed in seeds:
        if groups and seed == groups[-1][-1] + 1:
            groups[-1].append(seed)
        else:
            groups.append([seed])
    return ",".join(f"{g[0]}-{g[-1]}" if len(g) > 1 else str(g[0]) for g in groups)


def _declared_row(study: Study, variant: Variant, states: States) -> dict[str, Any]:
    """Return what a row says beside its trials; of a tuned variant, the setting that is shown."""
    changes = portable_fields(_changes(study, variant))
    if not study.tune:
        return {"changes": changes}
    per_setting = [
        [trial for trial in study.trials([variant.name]) if trial.setting == setting]
        for setting, _ in variant.settings
    ]
    candidates, best = _choose_setting(per_setting, states, study.baseline.spec.task.row.headline)
    trials = [states[trial.folder] for trial in per_setting[best or 0]]
    if best is None:  # no single setting may stand for the variant yet
        reason = "not all settings are trained yet"
        trials = [
            trial_without_result(trial, "missing", reason) if record.has_result else record
            for trial, record in zip(per_setting[0], trials, strict=True)
        ]
    return {
        "changes": changes,
        "trials": tuple(trials),
        "candidates": candidates,
        "chosen": None if best is None else variant.settings[best][0],
    }


def _changes(study: Study, variant: Variant) -> dict[str, Any]:
    base = study.baseline.changes
    kept = {
        field: value
        for field, value in variant.changes.items()
        if field == "experiment" or field not in base or base[field] != value
    }
    noted = base.keys() - study.tune.keys() | {EARLY_STOPPING}
    if study.equal_compute and len({spec.train.epochs for _, spec in variant.settings}) == 1:
        noted |= {EPOCHS}
    differing = differences(study.baseline.spec, variant.spec)
    return {field: value for field, (_, value) in differing.items() if field in noted} | kept


def _choose_setting(
    per_setting: Sequence[Sequence[Trial]], states: States, headline: Metric
) -> tuple[tuple[Candidate, ...], int | None]:
    """Return the candidates, and the index of the best by mean on the validation split.

    The index is None until every trial has a result. A setting that diverged with any seed is
    chosen only if every setting diverged.
    """
    candidates, scores = [], []
    name = f"val_{headline.name}"
    for trials in per_setting:
        records = [states[trial.folder] for trial in trials]
        known = [value for record in records if (value := record.number(name)) is not None]
        diverged = sum(record.state == "diverged" for record in records)
        mean = fmean(known) if len(known) == len(trials) else None
        numbers: dict[str, Any] = {}
        if mean is not None:
            numbers = {name: mean} if name == "val_accuracy" else {"measured": {name: mean}}
        setting = portable_fields(trials[0].setting)
        candidates.append(Candidate(setting=setting, num_diverged=diverged, **numbers))
        sign = 1 if headline.higher_is_better else -1
        scores.append((1, sign * mean) if mean is not None else (0, -diverged))
    is_done = all(states[t.folder].has_result for trials in per_setting for t in trials)
    return tuple(candidates), scores.index(max(scores)) if is_done else None


def recorded_plan(study: Study, root: Path, saved: SavedTrials | None) -> Plan:
    """Return what the study planned before its first result, and what it has asked for since.

    It is recorded in the plan of the study's folder, or beside its saved trials. Until there is a
    result, the study file counts. Results without a record, as of 1.0.0, are their own plan, or
    that of the studies that saved them.
    """
    rows, seeds = study.rows, sorted(study.seeds)
    known = read_recorded_plan(root)
    if known and (rerun_before(root) or any(trained_seeds(root))):
        return known.extended(rows, seeds)
    if saved and (stored := read_recorded_plan(saved.folder / default_root(study).name)):
        return stored.extended(rows, seeds)
    every = replace(study, seeds=tuple(dict.fromkeys([*study.file_seeds, *study.seeds])))
    origins = saved.origins(every.trials([*rows][1:])) if saved else {}
    results = {*origins, *map(int, trained_seeds(root))}
    if not results:
        today = date.today().isoformat()
        return Plan(seeds=study.planned_seeds, date=today).extended(rows, seeds)
    if known:
        return known.extended(rows, seeds)
    names = tuple(set().union(*origins.values()))
    folders = [path.parent for path in saved.folder.glob(f"*/{PLAN}")] if saved else []
    plans = [
        plan
        for folder in folders
        if folder.name.startswith(names) and (plan := read_recorded_plan(folder))
        if any({"", *[*rows.values()][1:]} & {*version.values()} for version in plan.versions)
    ]
    made = Plan(seeds=max(MIN_PAIRS, len(results)), order=tuple(sorted(results)))
    first = min(plans, key=lambda plan: plan.seeds, default=made)
    return first.replace(versions=()).extended(rows, seeds)


def trained_seeds(root: Path) -> Iterator[str]:
    """Yield the digits of the seed of each result in a study's folder, stale ones included."""
    for folder in [*root.glob("*/seed*"), *root.glob("*/*/seed*")]:
        number = folder.name.removeprefix("seed").partition(".")[0]
        if number.isdecimal() and read_record(folder).status in RESULT_STATES:
            yield number


def read_recorded_plan(folder: Path) -> Plan | None:
    """Return the plan in a folder; None without a file, or if vitcli 1.0.0 wrote it."""
    path = folder / PLAN
    try:
        content = read_json(path)
        if "planned" not in content and content.keys() & {"trials", "margins"}:
            return None
        return Plan.model_validate(content["planned"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            f"{path}: damaged, and nothing else says how many seeds the study planned; restore it,"
            " such as with git"
        ) from error
