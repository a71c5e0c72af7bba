"""The document of a study: results, before any statistics. No torch."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import Any

from vitcli.core.spec.metrics import Metric
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, typed_changes, typed_name
from vitcli.runner.experiment.diff import changed_fields, differences
from vitcli.runner.run.folder import RESULT_STATES, RunDir
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.run.record import Record, TrialState, assign_fields
from vitcli.runner.study.definition import EPOCHS, Study, Trial, Variant, is_same_setting
from vitcli.runner.study.images import with_scores
from vitcli.runner.study.result import (
    EARLY_STOPPING,
    MIN_PAIRS,
    Candidate,
    Plan,
    StudyResult,
    TrialResult,
    VariantResult,
)
from vitcli.runner.study.saved import SavedTrials
from vitcli.runner.study.states import trial_states
from vitcli.runner.text import join_words, portable, portable_fields

States = Mapping[str, TrialState]
"""State of each trial, by its folder."""


def read_results(
    study: Study,
    root: Path,
    only: Sequence[str] = (),
    saved: SavedTrials | None = None,
    *,
    states: States | None = None,
) -> StudyResult:
    """Return the document of the trials in a study's folder and of matching saved trials.

    ``states`` are those of the trials if they have been read.
    """
    if states is None:
        states = trial_states(study, root, only, saved)
    plan = recorded_plan(study, root, saved)
    shown = [variant for variant in study.variants if not only or variant.name in only]
    records = {
        trial.folder: record
        for trial in study.trials(only)
        if (record := states[trial.folder].record) is not None
    }
    _refuse_mixed_data(list(records.values()), root, has_folds=bool(study.baseline.spec.data.folds))
    results = [record.result for record in records.values() if record.state == "finished"]
    base = study.baseline.spec
    fields = portable_fields(changed_fields(base.replace(seed=0)))
    sessions = [session for record in records.values() for session in record.sessions]
    first = next(iter(records.values()), None)
    parameters = RunDir(root).read(PLAN).get("parameters", {})
    rows = tuple(_row(study, variant, states, parameters) for variant in shown)
    kernels = _distinct(result.kernels for result in results)
    if len({row.kernels for row in rows if row.kernels}) < 2:
        rows = tuple(row.replace(kernels=()) for row in rows)
    return StudyResult(
        name=study.name,
        question=study.question,
        hypothesis=study.hypothesis,
        command=command(study, only),
        commits=_distinct(session.commit for session in sessions),
        dirty=any(session.dirty for session in sessions),
        date=max(((session.started or "")[:10] for session in sessions), default=""),
        hardware=_distinct(session.hardware for session in sessions),
        torch=_distinct(session.torch for session in sessions),
        precision=_distinct(result.precision for result in results),
        kernels=kernels,
        inexact=tuple(folder for folder, record in records.items() if record.is_inexact),
        threads=study.threads,
        data=str(portable(base.data.name)),
        data_hash=first.data_hash if first else "",
        num_train=first.num_train if first else None,
        num_test=next((result.num_test for result in results if result.num_test), None),
        epochs=base.train.epochs,
        # A row that left the file after the first result was compared, too.
        num_comparisons=len({*plan.variants, *(each.name for each in study.variants)}) - 1,
        base_config={name: value for name, value in fields.items() if name not in study.tune},
        reference=study.reference,
        task=base.task.name,
        parts=study.parts,
        equal_compute=study.equal_compute,
        same_setting=is_same_setting(study),
        margin=study.equivalence_margin,
        plan=plan,
        other_plan=study.planned_seeds if study.planned_seeds != plan.seeds else None,
        rows=_with_images(study, rows, states, plan),
    )


def _with_images(
    study: Study, rows: Sequence[VariantResult], states: States, plan: Plan
) -> tuple[VariantResult, ...]:
    """Return the rows with the numbers that come from the predictions for single test images.

    With folds there are none, because each seed has other test images.
    """
    if study.baseline.spec.data.folds:
        return tuple(rows)
    images: list[dict[int, PerImage | None]] = []
    for row in rows:
        finished = {(t.config_hash, t.seed) for t in row.trials if t.state == "finished"}
        images.append(
            {
                trial.spec.seed: states[trial.folder].images
                for trial in study.trials([row.variant])
                if (trial.config_hash, trial.spec.seed) in finished
            }
        )
    return with_scores(rows, images, study.baseline.spec.task.row.headline, plan)


def _distinct(values: Any) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values if value}))


def _refuse_mixed_data(records: Sequence[Record], root: Path, *, has_folds: bool) -> None:
    hashes = sorted({record.data_hash[:12] for record in records})
    if len(hashes) > 1:
        raise InputError(
            f"{root}: its trials were trained on different images (hashes {', '.join(hashes)});"
            " train all of them again with --rerun"
        )
    counts = sorted({record.result.num_test for record in records if record.result.num_test})
    if len(counts) > 1 and not has_folds:
        raise InputError(
            f"{root}: its trials were measured on different numbers of test images"
            f" ({join_words(map(str, counts))}), which cannot be compared; train.limit_batches of a"
            " variant also limits them"
        )


def command(study: Study, only: Sequence[str] = ()) -> str:
    """Return the command that prints this table."""
    words = ["vitcli", "ablate", shlex.quote(typed_name(study.path))]
    words += [shlex.quote(str(portable(word))) for word in own_code.options()]
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


def _row(
    study: Study, variant: Variant, states: States, parameters: Mapping[str, int]
) -> VariantResult:
    per_setting = [
        [trial for trial in study.trials([variant.name]) if trial.setting == setting]
        for setting, _ in variant.settings
    ]
    candidates: tuple[Candidate, ...] = ()
    index, shown = 0, states
    chosen: dict[str, Any] | None = None
    if study.tune:
        candidates, best = _choose_setting(
            per_setting, states, study.baseline.spec.task.row.headline
        )
        if best is None:  # no single setting may stand for the variant yet
            waiting = TrialState(state="missing", reason="not all settings are trained yet")
            shown = {place: waiting if state.record else state for place, state in states.items()}
        else:
            index, chosen = best, variant.settings[best][0]
    measured = [r.result for trial in per_setting[index] if (r := states[trial.folder].record)]
    return VariantResult(
        variant=variant.name,
        changes=portable_fields(_changes(study, variant)),
        parameters=next(filter(None, (each.parameters for each in measured)), None)
        or parameters.get(variant.name),
        forward_flops=next(filter(None, (each.forward_flops for each in measured)), None),
        kernels=_distinct(each.kernels for each in measured),
        trials=tuple(
            trial_result(trial.spec.seed, trial.config_hash, shown[trial.folder])
            for trial in per_setting[index]
        ),
        candidates=candidates,
        chosen=chosen,
    )


def _changes(study: Study, variant: Variant) -> dict[str, Any]:
    """Return the fields of a variant that differ from the baseline, which may change some, too."""
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
    for trials in per_setting:
        records = [states[trial.folder].record for trial in trials]
        known = [record.result.number(f"val_{headline.name}") for record in records if record]
        diverged = sum(states[trial.folder].state == "diverged" for trial in trials)
        whole = [value for value in known if value is not None]
        mean = fmean(whole) if len(whole) == len(trials) else None
        numbers = {} if mean is None else assign_fields(Candidate, {f"val_{headline.name}": mean})
        setting = portable_fields(trials[0].setting)
        candidates.append(Candidate(setting=setting, num_diverged=diverged, **numbers))
        sign = 1 if headline.higher_is_better else -1
        scores.append((1, sign * mean) if mean is not None else (0, -diverged))
    is_done = all(states[t.folder].state in RESULT_STATES for trials in per_setting for t in trials)
    return tuple(candidates), scores.index(max(scores)) if is_done else None


def trial_result(seed: int, config_hash: str, state: TrialState) -> TrialResult:
    """Return a trial's entry in the document; only a finished trial has numbers."""
    entry: dict[str, Any] = {"seed": seed, "state": state.state, "reason": state.reason}
    if (record := state.record) is not None:
        entry |= {"epochs": record.epochs, "curve": record.curve}
        names = ("test_accuracy", "test_loss", "train_loss", "train_seconds", "images_per_second")
        entry |= {name: getattr(record.result, name) for name in names}
        entry["measured"] = record.result.measured
    return TrialResult(config_hash=config_hash, **entry)


def recorded_plan(study: Study, root: Path, saved: SavedTrials | None) -> Plan:
    """Return what the study planned before its first result.

    It is recorded in the plan of the study's folder, or beside its saved trials. Until there is a
    result, the study file counts. Results without a record, as of 1.0.0, are their own plan, unless
    the studies that saved them planned fewer seeds.
    """
    known = read_recorded_plan(root)
    names = tuple(variant.name for variant in study.variants)
    asked = Plan(
        seeds=study.planned_seeds,
        variants=names,
        date=date.today().isoformat(),
        baseline=config_hash(study.baseline.spec),
    )
    if known is None and saved is not None:  # a study of this name may have another configuration
        known = read_recorded_plan(saved.folder / study.name)
        known = known if known and known.baseline == asked.baseline else None
    if known and (known.seeds, known.variants) == (asked.seeds, asked.variants):
        return known
    every = replace(study, seeds=tuple(dict.fromkeys([*study.file_seeds, *study.seeds])))
    origins = saved.origins(every.trials(names[1:])) if saved else {}
    seeds = {*origins}
    for folder in [*root.glob("*/seed*"), *root.glob("*/*/seed*")]:
        number = folder.name.removeprefix("seed")
        if number.isdecimal() and RunDir(folder).status()["state"] in RESULT_STATES:
            seeds.add(int(number))
    if not seeds:
        return asked
    if known:
        return known
    folders = [saved.folder / name for name in set().union(*origins.values())] if saved else []
    plans = [plan.seeds for plan in map(read_recorded_plan, folders) if plan]
    fewest = min([max(MIN_PAIRS, len(seeds)), *plans])
    return Plan(seeds=fewest, order=tuple(sorted(seeds)), baseline=asked.baseline)


def read_recorded_plan(folder: Path) -> Plan | None:
    try:
        return Plan.model_validate(RunDir(folder).read(PLAN).get("planned"))
    except ValueError:
        return None
