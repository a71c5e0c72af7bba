"""`vitcli decide`: better, or noise."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitcli.cli.console import emit_report, say
from vitcli.cli.engines import Gpus, Place, check_engine, takes_options
from vitcli.cli.options import (
    Data,
    DryRun,
    Epochs,
    Format,
    LimitBatches,
    Sets,
    exclude,
    output_option,
    with_code,
    with_example,
)
from vitcli.plugin import load_target
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import CheckError, ConfigError, PartlyError
from vitcli.runner.report.report import Fact, Report, facts_of, hidden
from vitcli.runner.text import duration, ignore_message, portable, quantity

if TYPE_CHECKING:
    from vitcli.core.metric import Metric
    from vitcli.plugins.decide.ledger import Idea
    from vitcli.plugins.decide.pairs import Comparison
    from vitcli.plugins.decide.rule import Decision
    from vitcli.runner.study.plan import Options

ALONE = {
    "--report": ("--claim", "--adopt", "--dry-run", "a change"),
    "--claim": ("--adopt", "a change"),
    "--csv": (
        *("--report", "--claim", "--adopt", "--campaign", "--dry-run", "-o", "-s"),
        *("--data", "--epochs", "--limit-batches"),
    ),
}
"""Options that mean nothing beside another one."""


@with_example(
    "vitcli decide -s optim.lr=0.004 --against quickstart",
    "vitcli decide -s model.depth=5 --campaign night --against quickstart",
    "vitcli decide --csv results.csv",
)
@takes_options
@with_code
def decide(
    change: Annotated[
        str | None,
        typer.Argument(
            metavar="[CHANGE]", help="Experiment, or variant of --csv, to judge; or a campaign."
        ),
    ] = None,
    sets: Sets = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="BEST", help="Experiment or variant that is the best so far."),
    ] = None,
    campaign: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Campaign that the change is an idea of."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Make the change the best of the campaign, if it won.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--report", help="Show the ideas of a campaign, and write its page.")
    ] = False,
    claim: Annotated[
        bool,
        typer.Option(
            "--claim", help="Compare best and start on new seeds and the test images, once."
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="CSV file, one trial a row, trained anywhere."),
    ] = None,
    max_seeds: Annotated[
        int | None,
        typer.Option(
            min=5,
            max=64,
            help="Number of pairs of seeds at which a comparison ends.",
            show_default="16",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="Margin of equivalence, in the unit of the table."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the score, if it is not score.")
    ] = None,
    variant: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the variant.")
    ] = None,
    paired_by: Annotated[
        str | None,
        typer.Option("--pairs", metavar="COLUMN", help="Column that pairs trials, if not seed."),
    ] = None,
    unit: Annotated[
        Literal["percent", "fraction", "none"] | None,
        typer.Option(help="How scores are written."),
    ] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option(
            "--lower-is-better/--higher-is-better",
            help="Direction of the score, if its name does not say it.",
        ),
    ] = None,
    data: Data = None,
    epochs: Epochs = None,
    limit_batches: LimitBatches = None,
    *,
    options: "Options",
    engine: Place = LOCAL,
    gpus: Gpus = None,
    output: Annotated[
        Path | None, output_option("FOLDER", "Folder of the comparison.", "runs/...")
    ] = None,
    dry_run: DryRun = False,
    form: Format = "text",
) -> None:
    """Decide whether a change is better than the best so far, after as few seeds as possible.

    It trains pair after pair, both with the same seed, until there is a verdict: a wrong "better"
    or "worse" comes in at most 5 % of the comparisons. Exit code 0: better, or equivalent within
    --margin; 6: another verdict; 3: more pairs are needed. The same command goes on.
    """
    from vitcli.plugins.decide.rule import MOST

    command = shlex.join(["vitcli", *map(portable, sys.argv[1:])])
    if change and not campaign and not sets and (show or claim or adopt):
        campaign, change = change, None
    is_idea = results is None and bool(sets or change)
    refuse_together(
        {
            "--csv": results,
            "--report": show,
            "--claim": claim,
            "--adopt": adopt,
            "--dry-run": dry_run,
            "--campaign": campaign,
            "-o": output,
            "-s": sets or None,
            "--data": data,
            "--epochs": epochs,
            "--limit-batches": limit_batches,
            "a change": is_idea,
        }
    )
    reading = {
        "score": score,
        "variant": variant,
        "seed": paired_by,
        "unit": unit,
        "lower_is_better": lower_is_better,
    }
    if results is not None:
        choices = {**reading, "baseline": against}
        judge_file(results, change, choices, max_seeds or MOST, margin, command, form)
        return
    if any(value is not None for value in reading.values()):
        raise ConfigError("options of columns and scores say how to read a file; add --csv FILE")
    from vitcli.cli.chosen import collect_changes
    from vitcli.plugins.decide.ideas import Call
    from vitcli.plugins.decide.ledger import adopt as adopt_last
    from vitcli.runner.run.folder import named_folder

    fields = {"data.name": data, "train.epochs": epochs, "train.limit_batches": limit_batches}
    call = Call(
        folder=output or (named_folder(campaign) if campaign else None),
        is_single=campaign is None,
        adopts=adopt,
        against=against,
        typed={name: value for name, value in fields.items() if value is not None},
        max_seeds=max_seeds,
        margin=margin,
        command=command,
        on_message=say,
    )
    if show:
        from vitcli.plugins.decide.page import report

        emit_report(report(*call.existing()), form)
    elif is_idea or claim:
        if not dry_run:
            check_engine(engine, options.jobs, gpus)
        pairs = call.claim() if claim else call.compare(change, collect_changes(sets, {})[0])
        if dry_run:
            emit_report(plan_of(pairs, options), form)
            return
        idea = train(pairs, options, engine, gpus)
        decision = idea.decision(pairs.campaign.max_seeds)
        best, metric = pairs.name_of_best, pairs.campaign.metric
        emit_report(report_of(idea.name, best, decision, metric), form)
        if idea.adopted:
            say(f"adopted: {idea.name}")
        end(decision, is_won=idea.is_won)
    elif adopt:
        say(f"adopted: {adopt_last(call.existing()[0]).name}")
    else:
        raise ConfigError("name a change: -s FIELD=VALUE, an experiment, or --csv FILE")


def refuse_together(given: Mapping[str, object]) -> None:
    for option, others in ALONE.items():
        for other in others:
            exclude({option: given[option], other: given[other]})


def train(pairs: "Comparison", options: "Options", engine: str, gpus: float | None) -> "Idea":
    from vitcli.cli.trials import display
    from vitcli.plugins.decide.pairs import THREADS, compare
    from vitcli.runner.files import make_output_folder
    from vitcli.runner.study.plan import worker_count
    from vitcli.runner.train.events import TrialEvent

    if pairs.idea.is_final:
        return compare(pairs, options, ignore_message, ignore_message)
    make_output_folder(pairs.root)
    elsewhere = ENGINES[engine].train
    if elsewhere and not load_target(elsewhere)(pairs.root, THREADS, options, gpus):
        raise typer.Exit(PartlyError.exit_code)
    change, metric = pairs.idea.side.config_hash[:12], pairs.campaign.metric
    say(f"{pairs.idea.name} against {pairs.name_of_best}, in {pairs.root}")
    left, count = len([*pairs.wanted()]), worker_count(THREADS, options)
    with display(left, count, pairs.row, pairs.split, is_most=True) as screen:

        def on_event(found: TrialEvent) -> None:
            variant, _, seed = found.folder.partition("/")
            name = pairs.idea.name if variant == change else "best"
            screen.show(replace(found, folder=f"{name}/{seed}" if found.folder else ""))

        def on_pair(idea: "Idea") -> None:
            so_far = idea.decision(pairs.campaign.max_seeds)
            screen.say(
                f"{quantity(so_far.pairs, 'pair')}, interval {interval_text(so_far, metric)}"
            )

        return compare(pairs, options, on_event, on_pair)


def judge_file(
    path: Path,
    change: str | None,
    choices: dict[str, Any],
    most: int,
    margin: float | None,
    command: str,
    form: str,
) -> None:
    from vitcli.plugins.decide.csv_file import judge
    from vitcli.plugins.table.results_file import Choices, read_text
    from vitcli.runner.report.tables import csv_text

    chosen = Choices.of(**choices, margin=margin)
    document, unused = read_text(csv_text(path), str(path), chosen, command)
    if unused:
        say(f"not used: {', '.join(unused)}")
    judged = judge(document, change, most=most, margin=margin)
    if document.origin:
        say(document.origin.reading)
    decision, against = judged.decision, document.rows[0].variant
    report = report_of(judged.change, against, decision, document.headline)
    emit_report(replace(report, notes=judged.notes), form)
    end(decision, is_won=decision.is_won(margin))


def report_of(change: str, against: str, decision: "Decision", metric: "Metric") -> Report:
    mean = decision.mean
    shown = "not known yet"
    if mean is not None:
        shown = f"{mean:+.{metric.digits}f} {metric.difference_unit}"
    return Report(
        facts=[
            Fact("change", change),
            Fact("against", against),
            Fact("verdict", decision.verdict),
            Fact("pairs", decision.pairs, about=f"of at most {decision.most}"),
            *hidden(max_seeds=decision.most, unit=metric.difference_unit),
            Fact("difference", mean, text=shown),
            Fact("interval", decision.interval, text=interval_text(decision, metric)),
        ],
    )


def interval_text(decision: "Decision", metric: "Metric") -> str:
    from vitcli.plugins.decide.rule import FIRST

    if decision.interval is None:
        is_early = decision.pairs < FIRST
        return f"from {FIRST} pairs on" if is_early else "none while all differences are equal"
    low, high = decision.interval
    share = 100 * (1 - decision.alpha)
    return f"{low:+.{metric.digits}f} to {high:+.{metric.digits}f} ({share:g} % over all looks)"


def end(decision: "Decision", *, is_won: bool) -> None:
    """End with the exit code of a verdict, which is no error."""
    if not decision.is_final:
        raise typer.Exit(PartlyError.exit_code)
    if not is_won:
        raise typer.Exit(CheckError.exit_code)


def plan_of(pairs: "Comparison", options: "Options") -> Report:
    from vitcli.plugins.decide.pairs import refuse_other_precision
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.train.dry_run import dry_run
    from vitcli.runner.train.prepare import Request

    if not pairs.idea.is_final:
        refuse_other_precision(pairs, options)
    request = Request(
        device=options.device,
        data_dir=options.data_dir,
        rerun=True,
        without_test=pairs.split == "val",
        on_message=say,
    )
    costs = [dry_run(Experiment("decide", spec, pairs.root), request).total for spec in pairs.specs]
    known = [cost for cost in costs if cost is not None]
    pair = sum(known) if len(known) == len(costs) else None
    most = pairs.campaign.max_seeds - len(pairs.idea.scores)
    text = "not known, because the data set is not on this machine"
    if pair is not None:
        text = f"{duration(pair)} a pair, {quantity(most, 'pair')} at most"
    return Report(
        facts=[
            Fact("change", pairs.idea.name),
            Fact("against", pairs.name_of_best),
            *facts_of(folder=str(pairs.root), split=pairs.split, pairs=len(pairs.idea.scores)),
            Fact("seconds", pair, label="time", text=text),
        ],
        next=[pairs.idea.command.replace(" --dry-run", "")],
    )
