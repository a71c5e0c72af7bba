"""What `vitcli ablate` prints of a study beside its table, see runner/study/table.py."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import emit_report, say
from vitcli.runner.errors import PartlyError
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.text import duration, quantity, tera

if TYPE_CHECKING:
    from vitcli.runner.run.record import RunRecord
    from vitcli.runner.study.definition import Study
    from vitcli.runner.study.plan import StudyWork
    from vitcli.runner.study.saved import SavedTrials


def announce_saved(states: "Mapping[str, RunRecord]", saved: "SavedTrials | None") -> None:
    from vitcli.runner.study.plan import name_trials

    taken = sum(bool(state.source) for state in states.values())
    if saved and taken:
        say(f"{taken} of {quantity(len(states), 'trial')} taken from {saved.folder}")
    for reason, trials in name_trials(saved.refused).items() if saved else ():
        say(f"  {trials}: the saved result is not used ({reason})")


def show_plan(work: "StudyWork", options: Any, form: str) -> None:
    from vitcli.runner.study.estimate import dry_run_study

    costs = dry_run_study(work, options, say, time.process_time())
    rows = [
        {
            "trial": trial.folder,
            "state": work.states[trial.folder].state,
            "parameters": work.parameters[trial.variant],
            "flops": costs.flops[trial.variant],
            "seconds": costs.by_variant[trial.variant],
        }
        for trial in work.trials
    ]
    columns: list[Field | str] = [
        *("trial", "state", "parameters"),
        *(Field("flops", "TFLOP", text=tera), Field("seconds", "time", text=duration)),
    ]
    time_text = "not known, because a data set is not on this machine"
    if costs.total is not None:
        time_text = f"about {duration(costs.total)}, {costs.count} at once"
    detects = "" if work.study.parts else detectable_text(work)
    report = Report(
        facts=[
            *hidden(study=work.study.name, folder=str(work.root), at_once=costs.count),
            Fact("to_train", len(rows), about=f"of {quantity(len(work.states), 'trial')}"),
            Fact("seconds", costs.total, label="time", text=time_text),
            Fact("planned_seeds", work.planned.seeds, label="planned", text=planned_text(work)),
            Fact("detects", detects, text=detects),
            Fact("disk_bytes", work.disk_bytes, label="disk", about=f"when done ({work.root})"),
        ],
        tables=[DataTable("trials", columns, rows)],
    )
    emit_report(report, form)


def planned_text(work: "StudyWork") -> str:
    planned, asked = work.planned.seeds, len(work.study.seeds)
    text = f"{quantity(planned, 'seed')}; verdicts hold however often you look"
    if asked <= planned:
        return text
    text += f". {asked} seeds are more, and need stronger evidence"
    has_result = any(record.has_result for record in work.states.values())
    if not has_result and planned == work.study.planned_seeds:
        text += f"; planned_seeds: {asked} in the file plans them, before the first result"
    return text


def detectable_text(work: "StudyWork") -> str:
    from vitcli.runner.study.looks import level, seeds_needed
    from vitcli.runner.study.significance import ALPHA, planned_error

    planned, comparisons = work.planned.seeds, max(1, work.planned.num_comparisons)
    folds = work.study.baseline.spec.data.folds
    needed = seeds_needed(comparisons, folds=folds is not None)
    error = planned_error(planned, comparisons, folds, has_test=planned >= needed)
    if error is None:
        return (
            f"no difference with {quantity(planned, 'planned seed')}; a p-value needs a plan of"
            f" {needed}"
        )
    few = f" Pooled intervals decide; p-values need a plan of {needed} seeds."
    size = error.detectable(level(planned, planned, ALPHA / comparisons))
    return (
        f"differences of at least {size:.1f} standard deviations of the paired differences"
        f" ({quantity(planned, 'planned seed')}, {quantity(comparisons, 'comparison')})."
        f"{few if planned < needed else ''}"
    )


def show_status(
    study: "Study", root: Path, names: tuple[str, ...], saved: "SavedTrials | None", form: str
) -> None:
    from vitcli.runner.study.plan import count_states, explain_states
    from vitcli.runner.study.states import trial_states

    states = trial_states(study, root, names, saved)
    trials = [
        {"trial": folder, "state": record.state, "reason": record.reason}
        for folder, record in states.items()
    ]
    by_variant: dict[str, list[str]] = {}
    for trial in study.trials(names):
        variant = trial.folder.rpartition("/")[0]
        by_variant.setdefault(variant, []).append(states[trial.folder].state)
    seeds = Field("states", spread=[f"seed {seed}" for seed in study.seeds])
    rows = [{"variant": variant, "states": row} for variant, row in by_variant.items()]
    report = Report(
        facts=hidden(study=study.name, folder=str(root)),
        tables=[
            DataTable("trials", ["trial", "state", "reason"], trials, is_shown=False),
            DataTable("variants", ["variant", seeds], rows),
        ],
        notes=[*explain_states(states, only_reasons=True), count_states(states)],
    )
    emit_report(report, form)
    announce_saved(states, saved)


def refuse_gaps(states: "Mapping[str, RunRecord]", hint: str) -> None:
    """Raise PartlyError (exit code 3) if a trial has no result, after printing the reasons."""
    from vitcli.runner.study.plan import explain_states, states_without_result

    left = states_without_result(states)
    for line in explain_states(left, only_reasons=True):
        say(line)
    if left:
        have = "has" if len(left) == 1 else "have"
        total = quantity(len(states), "trial")
        raise PartlyError(f"{len(left)} of {total} {have} no result; {hint}")
