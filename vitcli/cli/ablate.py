"""`vitcli ablate`: the trials of a study and the table of their results."""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from vitcli.cli import complete
from vitcli.cli import options as shared
from vitcli.cli.chosen import collect_changes
from vitcli.cli.console import emit_exactly, emit_report, line_width, say
from vitcli.cli.engines import Gpus, Place, check_engine, check_folders, takes_options
from vitcli.cli.options import Rare, exclude, output_option, with_code, with_example
from vitcli.plugin import load_target
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import ConfigError, PartlyError
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.text import duration, quantity, tera

if TYPE_CHECKING:
    from vitcli.runner.run.record import RunRecord
    from vitcli.runner.study.definition import Study
    from vitcli.runner.study.plan import Options, StudyWork
    from vitcli.runner.study.result import StudyResult
    from vitcli.runner.study.saved import SavedTrials

STUDY = "ablation-quickstart"

Name = Annotated[
    str,
    Argument(
        metavar="STUDY",
        help="Study name ('vitcli experiments ls' lists them) or file.",
        autocompletion=complete.experiment,
    ),
]
Only = Annotated[
    list[str] | None,
    Option(metavar="VARIANT", help="Train this variant and the baseline only; may be repeated."),
]
Seeds = Annotated[str | None, Option(metavar="0-7", help="Random seeds to train.")]
Form = Annotated[
    Literal["text", "md", "latex", "csv", "json", "html", "trials"],
    Option(
        "--format",
        metavar="FORMAT",
        help="Format: text, md, latex, csv, json, html, trials.",
        show_default=False,
    ),
]
Output = Annotated[Path | None, output_option("FOLDER", "Folder of the study.", "runs/...")]
TableOnly = Annotated[bool, Option("--table-only", help="Print the table so far; train nothing.")]
FailFast = Annotated[bool, Rare("--fail-fast/--keep-going", help="Stop at the first failed trial.")]


@with_example(
    "vitcli ablate ablation-quickstart --dry-run",
    "vitcli ablate study-finetune --data imagefolder:pictures",
)
@takes_options
@with_code
def ablate(
    study: Name = STUDY,
    only: Only = None,
    seeds: Seeds = None,
    data: shared.Data = None,
    epochs: shared.Epochs = None,
    sets: shared.Sets = None,
    limit_batches: shared.LimitBatches = None,
    *,
    options: "Options",
    engine: Place = LOCAL,
    gpus: Gpus = None,
    form: Form = "text",
    output: Output = None,
    dry_run: shared.DryRun = False,
    status: shared.Status = False,
    table_only: TableOnly = False,
    caption: shared.Caption = None,
    details: shared.Details = False,
    rerun: shared.Rerun = False,
    fail_fast: FailFast = False,
    save: shared.Save = None,
    json: shared.Json = False,
) -> None:
    """Train the variants of a study and print their results.

    Run it again to train what has no result. A study that is changed, such as with -s, has a
    folder of its own.
    """
    from vitcli.runner.data.find import refuse_unused_folder
    from vitcli.runner.study.collect import read_results
    from vitcli.runner.study.definition import default_root, load_study, parse_seeds, select
    from vitcli.runner.study.plan import plan_study
    from vitcli.runner.study.table import render, trials_csv

    exclude({"--dry-run": dry_run, "--status": status, "--table-only": table_only})
    exclude({"--dry-run": dry_run, "--status": status, "--format trials": form == "trials"})
    exclude({"--table-only": table_only, "--rerun": rerun})
    shape = "json" if json else form
    check_folders(output, save)
    if not (dry_run or status or table_only):
        check_engine(engine, options.jobs, gpus)
    exclude({"--engine": engine != LOCAL, "--rerun": rerun})
    shortcuts = {"data.name": data, "train.epochs": epochs, "train.limit_batches": limit_batches}
    changes, places = collect_changes(sets, shortcuts)
    own_seeds = parse_seeds(seeds) if seeds is not None else None
    chosen = load_study(study, own_seeds, changes, places)
    if form == "trials" and chosen.baseline.spec.data.folds:
        raise ConfigError(
            "--format trials does not say which seeds are folds; leave out data.folds or take"
            " another format"
        )
    if chosen.note:
        say(f"note: {chosen.note}")
    refuse_unused_folder(chosen.baseline.spec.data.name, options.data_dir, may_choose=True)
    names, root = select(chosen, only or ()), output or default_root(chosen)

    def show(states: "Mapping[str, RunRecord]", saved: "SavedTrials | None") -> "StudyResult":
        doc = read_results(chosen, root, names, saved, states=states)
        emit_exactly(
            trials_csv(doc, states)
            if shape == "trials"
            else render(doc, shape, line_width(), details=details, caption=caption)
        )
        return doc

    if status:
        show_status(chosen, root, names, saved_trials(save), shape)
        return
    if table_only:
        from vitcli.runner.study.states import trial_states

        saved = saved_trials(save)
        states = trial_states(chosen, root, names, saved)
        announce_saved(states, saved)
        show(states, saved)
        refuse_gaps(states, "train them: leave out --table-only")
        return
    options = replace(options, fail_fast=fail_fast)
    rerun_variants = (only or names) if rerun else ()
    saved = saved_trials(save, options)
    work = plan_study(chosen, root, names, rerun=rerun_variants, saved=saved)
    announce(work, options.device)
    if dry_run:
        show_plan(work, options, shape)
    else:
        run(work, options, save, engine, gpus, show)


def run(
    work: "StudyWork",
    options: "Options",
    save: Path | None,
    engine: str,
    gpus: float | None,
    show: "Callable[[Mapping[str, RunRecord], SavedTrials | None], StudyResult]",
) -> None:
    from vitcli.runner.study.page import publish
    from vitcli.runner.study.plan import current_states, worker_count

    study, root, names = work.study, work.root, work.names
    elsewhere = ENGINES[engine].train
    if elsewhere is None or not work.trials:
        from vitcli.cli.trials import display
        from vitcli.runner.study.run import run_study

        count = worker_count(study.threads, options) if work.trials else 1
        with display(len(work.trials), count, study.baseline.spec.task.row) as screen:
            states = run_study(work, options, screen.show, save=save)
    elif load_target(elsewhere)(root, study.threads, options, gpus):
        states = current_states(work)
    else:
        return
    # The report of a part of the study must not replace the report of the whole study.
    whole = len(names) == len(study.variants) and {*study.file_seeds} <= {*study.seeds}
    say(f"making the {'table, figures and report' if whole else 'table'} ...")
    doc = show(states, work.saved)
    if whole:
        publish(doc, root, say)
    refuse_gaps(states, f"try them again: {options.command}")
    if whole:
        say(f"report  {root / 'report.html'}")
    else:
        part = "--seeds" if len(names) == len(study.variants) else "--only"
        say(f"report  not written, because {part} trains a part of the study; leave out {part}")
    if any(not state.source for state in states.values()):
        say(f"next    tensorboard --logdir {shlex.quote(str(root))}")


def saved_trials(folder: Path | None, options: "Options | None" = None) -> "SavedTrials | None":
    """Return the saved results in a folder; with ``options`` those of this precision."""
    from vitcli.runner.study.saved import SAVED, SavedTrials

    folder = folder or SAVED
    if not folder.is_dir():
        return None
    if options is None:
        return SavedTrials(folder)
    from vitcli.runner.study.plan import saved_for_training

    return saved_for_training(folder, options)


def announce(work: "StudyWork", device: str) -> None:
    from vitcli.runner.experiment.config import shown_name
    from vitcli.runner.study.plan import count_states

    study = work.study
    say(f"study {shown_name(study.name, study.path)}")
    variants = quantity(len(work.names), "variant")
    say(f"{variants} x {quantity(len(study.seeds), 'seed')}: {count_states(work.states)}")
    announce_saved(work.states, work.saved)
    if work.planned.advice:
        say(f"note: {work.planned.advice}")
    if any(trial.spec.train.precision == "bf16" for trial in work.trials):
        from vitcli.runner.machine.device import warn_if_emulated

        warn_if_emulated("bf16", device, say, "set train.precision to fp32 in the study")


def announce_saved(states: "Mapping[str, RunRecord]", saved: "SavedTrials | None") -> None:
    from vitcli.runner.study.plan import name_trials

    taken = sum(bool(state.source) for state in states.values())
    if saved and taken:
        say(f"{taken} of {quantity(len(states), 'trial')} taken from {saved.folder}")
    for reason, trials in name_trials(saved.refused).items() if saved else ():
        say(f"  {trials}: the saved result is not used ({reason})")


def show_plan(work: "StudyWork", options: "Options", form: str) -> None:
    from vitcli.cli.trials import time_fact
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
    detects = "" if work.study.parts else detectable_text(work)
    report = Report(
        facts=[
            *hidden(study=work.study.name, folder=str(work.root), at_once=costs.count),
            Fact("to_train", len(rows), about=f"of {quantity(len(work.states), 'trial')}"),
            time_fact(costs.total, f"about {{}}, {costs.count} at once"),
            Fact("planned_seeds", work.planned.seeds, label="planned", text=planned_text(work)),
            Fact("detects", detects, text=detects),
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
    for folder, record in states.items():
        by_variant.setdefault(folder.rpartition("/")[0], []).append(record.state)
    seeds = Field("states", spread=[f"seed {seed}" for seed in study.seeds])
    rows = [{"variant": variant, "states": row} for variant, row in by_variant.items()]
    report = Report(
        facts=hidden(study=study.name, folder=str(root)),
        tables=[
            DataTable("trials", ["trial", "state", "reason"], trials, is_shown=False),
            DataTable("variants", ["variant", seeds], rows),
        ],
        notes=[*explain_states(states), count_states(states)],
    )
    emit_report(report, form)
    announce_saved(states, saved)


def refuse_gaps(states: "Mapping[str, RunRecord]", hint: str) -> None:
    """Raise PartlyError (exit code 3) if a trial has no result, after printing the reasons."""
    from vitcli.runner.study.plan import explain_states, states_without_result

    left = states_without_result(states)
    for line in explain_states(left):
        say(line)
    if left:
        have = "has" if len(left) == 1 else "have"
        total = quantity(len(states), "trial")
        raise PartlyError(f"{len(left)} of {total} {have} no result; {hint}")
