"""What `vitcli ablate` prints about a study: its plan, states and missing results."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import emit, emit_json, say, table
from vitcli.runner.text import duration, quantity

if TYPE_CHECKING:
    from vitcli.runner.run.record import TrialState
    from vitcli.runner.study.definition import Study
    from vitcli.runner.study.plan import StudyPlan
    from vitcli.runner.study.saved import SavedTrials


def announce_saved(states: "Mapping[str, TrialState]", saved: "SavedTrials | None") -> None:
    """Print how many saved results are used, which ones are refused, and why."""
    from vitcli.runner.study.plan import name_trials

    taken = sum(bool(state.source) for state in states.values())
    if saved and taken:
        say(f"{taken} of {quantity(len(states), 'trial')} taken from {saved.folder}")
    for reason, trials in name_trials(saved.refused).items() if saved else ():
        say(f"  {trials}: the saved result is not used ({reason})")


def show_plan(plan: "StudyPlan", options: Any, *, as_json: bool) -> None:
    """Print the trials to train, their training time and disk space, and missing data sets."""
    from vitcli.runner.study.estimate import estimate_study, read_own_pictures
    from vitcli.runner.train.dry_run import missing_data_note

    if options.cluster.engine == "local":
        for name in dict.fromkeys(trial.spec.data.name for trial in plan.trials):
            if note := missing_data_note(name, options.data_dir, options.offline):
                say(note)
        read_own_pictures(plan, options, say)
    estimate = estimate_study(plan, options, spent_seconds=time.process_time(), on_message=say)
    found: list[dict[str, Any]] = [
        {
            "trial": trial.folder,
            "state": plan.states[trial.folder].state,
            "parameters": plan.parameters[trial.variant],
            "seconds": estimate.by_variant[trial.variant],
        }
        for trial in plan.trials
    ]
    if as_json:
        total = {"seconds": estimate.total, "at_once": estimate.count}
        place = {"study": plan.study.name, "folder": str(plan.root)}
        emit_json(place | {"trials": found} | total | {"disk_bytes": plan.disk_bytes})
        return
    rows = [[t["trial"], t["state"], f"{t['parameters']:,}", duration(t["seconds"])] for t in found]
    if rows:
        emit(table(["trial", "state", "parameters", "time"], rows, numeric=(2, 3)))
    emit(f"to train  {len(rows)} of {quantity(len(plan.states), 'trial')}")
    here = "" if options.cluster.engine == "local" else " on machines like this one"
    emit(f"time      about {duration(estimate.total)}, {estimate.count} at once{here}")
    if estimate.compile_seconds:
        allowance = duration(estimate.compile_seconds)
        emit(f"compiling {allowance} of each trial; this is an allowance, not measured")
    if not plan.study.parts:
        emit(f"detects   {detectable_text(plan.study)}")
    emit(f"disk      {plan.disk_bytes / 1e6:,.0f} MB when done ({plan.root})")


def detectable_text(study: "Study") -> str:
    """Return the smallest difference that the seeds of a study can detect, in words."""
    from vitcli.runner.study.significance import (
        MIN_PAIRS,
        detectable,
        detectable_by_t,
        seeds_needed,
    )

    seeds, comparisons = len(study.seeds), max(1, len(study.variants) - 1)
    if seeds < MIN_PAIRS:
        return f"no difference with {quantity(seeds, 'seed')}; an interval needs {MIN_PAIRS} seeds"
    given = f"{quantity(seeds, 'seed')}, {quantity(comparisons, 'comparison')}"
    folds = study.baseline.spec.data.folds
    size, needed = detectable(1.0, seeds, comparisons), seeds_needed(comparisons)
    if folds:
        error = (1 / seeds + 1 / (folds - 1)) ** 0.5  # as in MeanError.of_seeds
        size, needed = detectable_by_t(error, seeds - 1, comparisons), MIN_PAIRS
    if size is None:
        return f"no difference with {quantity(seeds, 'seed')}; a p-value needs {needed} seeds"
    few = f" Pooled intervals decide; p-values need {needed} seeds." if seeds < needed else ""
    return (
        f"differences of at least {size:.1f} standard deviations of the paired differences"
        f" ({given}).{few}"
    )


def show_status(
    study: "Study",
    root: Path,
    names: tuple[str, ...],
    saved: "SavedTrials | None",
    *,
    as_json: bool,
) -> None:
    """Print the state of each trial and the reasons for the states."""
    from vitcli.runner.study.plan import count_states, explain_states
    from vitcli.runner.study.states import trial_states

    states = trial_states(study, root, names, saved)
    if as_json:
        found = [
            {"trial": folder, "state": each.state, "reason": each.reason}
            for folder, each in states.items()
        ]
        emit_json({"study": study.name, "folder": str(root), "trials": found})
        return
    header = ["variant", *(f"seed {seed}" for seed in study.seeds)]
    rows: dict[str, list[str]] = {}
    for trial in study.trials(names):
        rows.setdefault(trial.folder.rpartition("/")[0], []).append(states[trial.folder].state)
    emit(table(header, [[name, *states] for name, states in rows.items()]))
    for line in explain_states(states, only_reasons=True):
        emit(line)
    emit(count_states(states))
    announce_saved(states, saved)


def refuse_gaps(states: "Mapping[str, TrialState]", hint: str) -> None:
    """Raise PartlyError (exit code 3) if a trial has no result, after printing the reasons."""
    from vitcli.runner.errors import PartlyError
    from vitcli.runner.study.plan import explain_states, states_without_result

    left = states_without_result(states)
    for line in explain_states(left, only_reasons=True):
        say(line)
    if left:
        have = "has" if len(left) == 1 else "have"
        total = quantity(len(states), "trial")
        raise PartlyError(f"{len(left)} of {total} {have} no result; {hint}")
