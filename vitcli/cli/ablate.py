"""`vitcli ablate`: the trials of a study and the table of their results."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vitcli.cli import complete
from vitcli.cli.chosen import collect_changes
from vitcli.cli.console import emit_exactly, line_width, say
from vitcli.cli.engines import Gpus, Place, check_engine, check_folders, takes_options
from vitcli.cli.options import (
    Caption,
    Data,
    Details,
    DryRun,
    Epochs,
    Json,
    LimitBatches,
    Rerun,
    Save,
    Sets,
    Status,
    exclude,
    output_option,
    refuse_caption,
    with_code,
)
from vitcli.cli.study_output import announce_saved, refuse_gaps, show_plan, show_status
from vitcli.plugin import load_target
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import quantity

if TYPE_CHECKING:
    from vitcli.runner.run.record import RunRecord
    from vitcli.runner.study.definition import Study
    from vitcli.runner.study.plan import Options, StudyWork
    from vitcli.runner.study.result import StudyResult
    from vitcli.runner.study.saved import SavedTrials

STUDY = "ablation-quickstart"

Name = Annotated[
    str,
    typer.Argument(
        metavar="STUDY",
        help="Study name ('vitcli experiments ls' lists them) or file.",
        autocompletion=complete.study,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="VARIANT", help="Train this variant and the baseline only; may be repeated."
    ),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="0-7", help="Random seeds to train.", show_default=False)
]


Form = Annotated[
    Literal["text", "md", "latex", "csv", "json", "html", "trials"],
    typer.Option(
        "--format",
        metavar="FORMAT",
        help="Format: text, md, latex, csv, json, html, trials.",
        show_default=False,
    ),
]
Output = Annotated[Path | None, output_option("FOLDER", "Folder of the study.", "runs/...")]
TableOnly = Annotated[
    bool, typer.Option("--table-only", help="Print the table so far; train nothing.")
]
FailFast = Annotated[
    bool,
    typer.Option("--fail-fast/--keep-going", help="Stop at the first failed trial.", hidden=True),
]

USELESS = {
    "--status": ("--rerun", "--format", "--details", "--caption"),
    "--table-only": ("--rerun",),
    "--dry-run": ("--format", "--details", "--caption"),
}
"""Options that have no effect beside another one."""


@dataclass(frozen=True)
class Request:
    """A study, and what is to be done with its results."""

    study: "Study"
    root: Path
    names: tuple[str, ...]
    form: str
    save: Path | None
    details: bool
    caption: str | None
    rerun_variants: Sequence[str]
    engine: str
    gpus: float | None


@takes_options
@with_code
def ablate(
    study: Name = STUDY,
    only: Only = None,
    seeds: Seeds = None,
    data: Data = None,
    epochs: Epochs = None,
    sets: Sets = None,
    limit_batches: LimitBatches = None,
    *,
    options: "Options",
    engine: Place = LOCAL,
    gpus: Gpus = None,
    form: Form = "text",
    output: Output = None,
    dry_run: DryRun = False,
    status: Status = False,
    table_only: TableOnly = False,
    caption: Caption = None,
    details: Details = False,
    rerun: Rerun = False,
    fail_fast: FailFast = False,
    save: Save = None,
    json: Json = False,
) -> None:
    """Train the variants of a study and print their results.

    Run it again to train what has no result. A study that is changed, such as with -s, has a
    folder of its own.

    \b
    Example:
      vitcli ablate ablation-quickstart --dry-run
      vitcli ablate study-finetune --data imagefolder:pictures
    """
    from vitcli.runner.data.find import refuse_unused_folder
    from vitcli.runner.study.definition import default_root, load_study, parse_seeds, select

    exclude({"--dry-run": dry_run, "--status": status, "--table-only": table_only})
    has_shape = form != "text" and not (form == "json" and (status or dry_run))
    given = {"--dry-run": dry_run, "--status": status, "--table-only": table_only}
    given |= {"--rerun": rerun, "--details": details, "--caption": caption is not None}
    given["--format"] = has_shape
    for option, others in USELESS.items():
        for other in others:
            exclude({option: given[option], other: given[other]})
    refuse_caption(caption, "json" if json else form)
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
    names = select(chosen, only or ())
    request = Request(
        study=chosen,
        root=output or default_root(chosen),
        names=names,
        form="json" if json else form,
        save=save,
        details=details,
        caption=caption,
        rerun_variants=(only or names) if rerun else (),
        engine=engine,
        gpus=gpus,
    )
    options = replace(options, fail_fast=fail_fast)
    if status:
        show_status(chosen, request.root, names, saved_trials(save), request.form)
    elif table_only:
        from vitcli.runner.study.states import trial_states

        saved = saved_trials(save)
        states = trial_states(chosen, request.root, names, saved)
        announce_saved(states, saved)
        show_table(request, states, saved)
        refuse_gaps(states, "train them: leave out --table-only")
    else:
        run(request, options, dry_run=dry_run)


def run(request: Request, options: "Options", *, dry_run: bool) -> None:
    from vitcli.runner.study.page import publish
    from vitcli.runner.study.plan import current_states, plan_study

    study, root, names = request.study, request.root, request.names
    saved = saved_trials(request.save, options)
    work = plan_study(study, root, names, rerun=request.rerun_variants, saved=saved)
    announce(work)
    if any(trial.spec.train.precision == "bf16" for trial in work.trials):
        from vitcli.runner.machine.products import warn_if_emulated

        warn_if_emulated("bf16", options.device, say, "set train.precision to fp32 in the study")
    if dry_run:
        show_plan(work, options, request.form)
        return
    elsewhere = ENGINES[request.engine].train
    if elsewhere is None or not work.trials:
        states = train(work, options, request.save)
    elif load_target(elsewhere)(root, study.threads, options, request.gpus):
        states = current_states(work)
    else:
        return
    # The report of a part of the study must not replace the report of the whole study.
    whole = len(names) == len(study.variants) and {*study.file_seeds} <= {*study.seeds}
    say(f"making the {'table, figures and report' if whole else 'table'} ...")
    doc = show_table(request, states, saved)
    if whole:
        publish(doc, root)
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


def announce(work: "StudyWork") -> None:
    from vitcli.runner.experiment.config import shown_name
    from vitcli.runner.study.plan import count_states, explain_states

    study = work.study
    say(f"study {shown_name(study.name, study.path)}")
    variants = quantity(len(work.names), "variant")
    say(f"{variants} x {quantity(len(study.seeds), 'seed')}: {count_states(work.states)}")
    announce_saved(work.states, work.saved)
    begun = {
        trial.folder: record
        for trial in work.trials
        if (record := work.states[trial.folder]).state != "missing" and not record.has_result
    }
    for line in explain_states(begun):
        say(f"  {line}")
    if work.planned.advice:
        say(f"note: {work.planned.advice}")


def train(work: "StudyWork", options: "Options", save: Path | None) -> "dict[str, RunRecord]":
    from vitcli.cli.trials import display
    from vitcli.runner.study.plan import worker_count
    from vitcli.runner.study.run import run_study

    count = worker_count(work.study.threads, options) if work.trials else 1
    with display(len(work.trials), count, work.study.baseline.spec.task.row) as screen:
        return run_study(work, options, screen.show, save=save)


def show_table(
    request: Request, states: "Mapping[str, RunRecord]", saved: "SavedTrials | None"
) -> "StudyResult":
    from vitcli.runner.study.collect import read_results
    from vitcli.runner.study.table import render

    study = request.study
    doc = read_results(study, request.root, request.names, saved, states=states)
    if request.form == "trials":
        from vitcli.runner.study.table import trials_csv

        emit_exactly(trials_csv(doc, states))
    else:
        details, caption = request.details, request.caption
        emit_exactly(render(doc, request.form, line_width(), details=details, caption=caption))
    return doc
