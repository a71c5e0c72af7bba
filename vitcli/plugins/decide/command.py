"""`vitcli decide`: better, or noise."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from vitcli.cli import options as shared
from vitcli.cli.console import emit_report, say
from vitcli.cli.engines import Gpus, Place, check_engine, takes_options
from vitcli.cli.options import exclude, output_option, with_code, with_example
from vitcli.plugin import load_target
from vitcli.plugins.table.command import LowerIsBetter, Margin, Pairs, Score, Unit, VariantColumn
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import CheckError, ConfigError, PartlyError
from vitcli.runner.report.report import Fact, Report, facts_of, hidden
from vitcli.runner.text import portable, quantity, signed

if TYPE_CHECKING:
    from vitcli.core.metric import Metric
    from vitcli.plugins.decide.comparison import Comparison
    from vitcli.plugins.decide.ledger import Idea
    from vitcli.plugins.decide.rule import Decision
    from vitcli.runner.study.plan import Options
    from vitcli.runner.train.events import TrialEvent


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
        Argument(metavar="[CHANGE]", help="Experiment, variant of --csv, or campaign."),
    ] = None,
    sets: shared.Sets = None,
    against: Annotated[
        str | None, Option(metavar="BEST", help="Experiment or variant that is the best so far.")
    ] = None,
    campaign: Annotated[
        str | None, Option(metavar="NAME", help="Campaign that the change is an idea of.")
    ] = None,
    adopt: Annotated[
        bool, Option("--adopt", help="Make the change the best of the campaign, if it won.")
    ] = False,
    show: Annotated[bool, Option("--report", help="Show the ideas of a campaign.")] = False,
    claim: Annotated[
        bool, Option("--claim", help="Compare best and start on new seeds and test images, once.")
    ] = False,
    results: Annotated[
        Path | None, Option("--csv", metavar="FILE", help="CSV file of any trainings, one a row.")
    ] = None,
    max_seeds: Annotated[
        int | None, Option(min=5, max=64, help="Largest number of pairs.", show_default="16")
    ] = None,
    margin: Margin = None,
    score: Score = None,
    variant: VariantColumn = None,
    paired_by: Pairs = None,
    unit: Unit = None,
    lower_is_better: LowerIsBetter = None,
    data: shared.Data = None,
    epochs: shared.Epochs = None,
    limit_batches: shared.LimitBatches = None,
    *,
    options: "Options",
    engine: Place = LOCAL,
    gpus: Gpus = None,
    output: Annotated[
        Path | None, output_option("FOLDER", "Folder of the comparison.", "runs/...")
    ] = None,
    dry_run: shared.DryRun = False,
    form: shared.Format = "text",
) -> None:
    """Decide whether a change is better than the best so far, after as few seeds as possible.

    It trains pair after pair, both with the same seed, until there is a verdict: a wrong "better"
    or "worse" comes in at most 5 % of the comparisons. Exit code 0: better, or equivalent within
    --margin; 6: another verdict; 3: more pairs are needed. The same command goes on.
    """
    command = shlex.join(["vitcli", *map(portable, sys.argv[1:])])
    if (show or claim) and not campaign:
        campaign, change = change, None
    fields = {"--data": data, "--epochs": epochs, "--limit-batches": limit_batches}
    modes = {"--csv": results, "--report": show, "--claim": claim}
    exclude({**modes, "--adopt": adopt})
    exclude({**modes, "-s": sets})
    exclude({"--report": show, "--claim": claim, "a change": change})
    exclude({"--csv": results, "--campaign": campaign})
    exclude({"--csv": results, "-o": output})
    trainings = {"--dry-run": dry_run, "--engine": engine != LOCAL, "--gpus": gpus, **fields}
    for option, value in trainings.items():
        exclude({"--csv": results, "--report": show, option: value})
    from vitcli.plugins.table.results_file import Choices, checked

    columns: dict[str, object] = {"score": score, "variant": variant, "seed": paired_by}
    columns |= {"unit": unit, "lower_is_better": lower_is_better}
    if results is not None:
        from vitcli.plugins.decide.python import judge

        choices = Choices.of(**columns, baseline=against, margin=margin)
        report_decision(*judge(results, change, max_seeds, choices, command, say), form)
        return
    if Choices.of(**columns) != Choices():
        raise ConfigError("options of columns and scores say how to read a file; add --csv FILE")
    from vitcli.plugins.decide.comparison import OPTIONS, Call
    from vitcli.runner.experiment.config import parse_sets

    about: dict[str, object] = {"campaign": campaign, "folder": output, "against": against}
    about |= {"max_seeds": max_seeds, "margin": margin, "command": command, "on_message": say}
    typed = {field: fields[option] for field, option in OPTIONS.items()}
    call = checked(Call, {**about, "typed": typed})
    if show:
        from vitcli.plugins.decide.ledger import report

        root, known = call.existing()
        emit_report(report(root.name, known), form)
        return
    if not (sets or change or claim):
        raise ConfigError("name a change: -s FIELD=VALUE, an experiment, or --csv FILE")
    if not dry_run:
        check_engine(engine, options.jobs, gpus)
    pairs = call.claim() if claim else call.compare(change, parse_sets(sets))
    pairs.adopts = adopt
    if dry_run:
        emit_report(plan_of(pairs, options), form)
        return
    train(pairs, options, engine, gpus)
    if pairs.idea.adopted:
        say(f"adopted: {pairs.idea.name}")
    names = pairs.idea.name, pairs.name_of_best
    report_decision(names, pairs.idea, pairs.campaign.metric, pairs.notes, form)


def train(pairs: "Comparison", options: "Options", engine: str, gpus: float | None) -> None:
    from vitcli.cli.trials import display
    from vitcli.plugins.decide.comparison import THREADS, compare
    from vitcli.runner.study.plan import worker_count

    elsewhere = None if pairs.idea.is_final else ENGINES[engine].train
    if elsewhere and not load_target(elsewhere)(pairs.root, THREADS, options, gpus):
        raise Exit(PartlyError.exit_code)
    say(f"{pairs.idea.name} against {pairs.name_of_best}, in {pairs.root}")
    change, best, _ = pairs.idea.key
    names = {change[:12]: pairs.idea.name, best[:12]: "best"}
    left, count = len(pairs.wanted()), worker_count(THREADS, options)
    with display(left, count, pairs.row, pairs.split, is_most=True) as screen:

        def show(found: "TrialEvent") -> None:
            variant, slash, seed = found.folder.partition("/")
            screen.show(replace(found, folder=f"{names.get(variant, '')}{slash}{seed}"))

        compare(pairs, options, show)


def report_decision(
    names: Sequence[str], answer: "Decision | Idea", metric: "Metric", notes: list[str], form: str
) -> None:
    """End with the exit code of a verdict, which is no error."""
    from vitcli.plugins.decide.rule import unit_of

    unit, digits = unit_of(metric), metric.digits
    difference = f"{signed(answer.mean, digits)} {unit}" if answer.pairs else "not known yet"
    report = Report(
        facts=[
            *facts_of(change=names[0], against=names[1], verdict=answer.verdict),
            Fact("pairs", answer.pairs),
            *hidden(unit=unit),
            Fact("difference", answer.mean, text=difference),
            Fact("interval", answer.interval, text=answer.interval_text(digits)),
        ],
        notes=notes,
    )
    emit_report(report, form)
    if not answer.is_final:
        raise Exit(PartlyError.exit_code)
    if not answer.is_won:
        raise Exit(CheckError.exit_code)


def plan_of(pairs: "Comparison", options: "Options") -> Report:
    from vitcli.cli.trials import time_fact
    from vitcli.plugins.decide.comparison import refuse_other_precision
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.study.estimate import dry_run_trial

    if not pairs.idea.is_final:
        refuse_other_precision(pairs, options)
    costs = []
    for spec in pairs.specs:
        side, without_test = Experiment("decide", spec, pairs.root), pairs.split == "val"
        cost = dry_run_trial(side, pairs.root, options, say, without_test=without_test)
        costs.append(cost.total)
    seconds = None if None in costs else sum(filter(None, costs))
    most = quantity(pairs.campaign.max_seeds - pairs.idea.pairs, "pair")
    return Report(
        facts=[
            *facts_of(change=pairs.idea.name, against=pairs.name_of_best, folder=str(pairs.root)),
            *facts_of(split=pairs.split, pairs=pairs.idea.pairs),
            time_fact(seconds, f"{{}} a pair, {most} at most"),
        ],
        next=[pairs.idea.command.replace(" --dry-run", "")],
    )
