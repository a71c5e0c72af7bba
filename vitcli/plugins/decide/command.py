"""`vitcli decide`: better, or noise."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

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
from vitcli.plugins.table.command import LowerIsBetter, Margin, Pairs, Score, Unit, VariantColumn
from vitcli.runner.engines.engine import ENGINES, LOCAL
from vitcli.runner.errors import CheckError, ConfigError, PartlyError
from vitcli.runner.report.report import Fact, Report, facts_of, hidden
from vitcli.runner.text import ignore_message, portable, quantity

if TYPE_CHECKING:
    from vitcli.core.metric import Metric
    from vitcli.plugins.decide.pairs import Comparison
    from vitcli.plugins.decide.rule import Decision
    from vitcli.runner.study.plan import Options


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
        Argument(
            metavar="[CHANGE]", help="Experiment, or variant of --csv, to judge; or a campaign."
        ),
    ] = None,
    sets: Sets = None,
    against: Annotated[
        str | None,
        Option(metavar="BEST", help="Experiment or variant that is the best so far."),
    ] = None,
    campaign: Annotated[
        str | None,
        Option(metavar="NAME", help="Campaign that the change is an idea of."),
    ] = None,
    adopt: Annotated[
        bool, Option("--adopt", help="Make the change the best of the campaign, if it won.")
    ] = False,
    show: Annotated[bool, Option("--report", help="Show the ideas of a campaign.")] = False,
    claim: Annotated[
        bool,
        Option("--claim", help="Compare best and start on new seeds and the test images, once."),
    ] = False,
    results: Annotated[
        Path | None,
        Option("--csv", metavar="FILE", help="CSV file, one trial a row, trained anywhere."),
    ] = None,
    max_seeds: Annotated[
        int | None,
        Option(
            min=5,
            max=64,
            help="Number of pairs of seeds at which a comparison ends.",
            show_default="16",
        ),
    ] = None,
    margin: Margin = None,
    score: Score = None,
    variant: VariantColumn = None,
    paired_by: Pairs = None,
    unit: Unit = None,
    lower_is_better: LowerIsBetter = None,
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
    command = shlex.join(["vitcli", *map(portable, sys.argv[1:])])
    if change and not campaign and not sets and (show or claim):
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
    reading: dict[str, Any] = {"score": score, "variant": variant, "seed": paired_by}
    reading |= {"unit": unit, "lower_is_better": lower_is_better}
    if results is not None:
        from vitcli.plugins.decide.csv_file import judge

        reading |= {"baseline": against, "margin": margin}
        report_decision(*judge(results, change, max_seeds, reading, command, say), form)
        return
    if any(value is not None for value in reading.values()):
        raise ConfigError("options of columns and scores say how to read a file; add --csv FILE")
    from vitcli.plugins.decide.ideas import OPTIONS, Call
    from vitcli.runner.experiment.config import parse_sets
    from vitcli.runner.run.folder import named_folder

    call = Call(
        folder=output or (named_folder(campaign, "--campaign") if campaign else None),
        is_campaign=campaign is not None,
        adopts=adopt,
        against=against,
        typed={field: fields[option] for field, option in OPTIONS.items()},
        max_seeds=max_seeds,
        margin=margin,
        command=command,
        on_message=say,
    )
    if show:
        from vitcli.plugins.decide.report import report

        folder, known = call.existing()
        emit_report(report(folder.name, known), form)
        return
    if not (sets or change or claim):
        raise ConfigError("name a change: -s FIELD=VALUE, an experiment, or --csv FILE")
    if not dry_run:
        check_engine(engine, options.jobs, gpus)
    pairs = call.claim() if claim else call.compare(change, parse_sets(sets))
    if dry_run:
        emit_report(plan_of(pairs, options), form)
        return
    train(pairs, options, engine, gpus)
    if pairs.idea.adopted:
        say(f"adopted: {pairs.idea.name}")
    decision = pairs.idea.decision(pairs.campaign.max_seeds)
    names = pairs.idea.name, pairs.name_of_best
    report_decision(*names, decision, pairs.campaign.metric, pairs.notes, form)


def train(pairs: "Comparison", options: "Options", engine: str, gpus: float | None) -> None:
    from vitcli.cli.trials import display
    from vitcli.plugins.decide.pairs import THREADS, compare
    from vitcli.runner.study.plan import worker_count
    from vitcli.runner.train.events import TrialEvent

    if pairs.idea.is_final:
        compare(pairs, options, ignore_message)
        return
    elsewhere = ENGINES[engine].train
    if elsewhere and not load_target(elsewhere)(pairs.root, THREADS, options, gpus):
        raise Exit(PartlyError.exit_code)
    change, num_told = pairs.idea.side.config_hash[:12], len(pairs.idea.scores)
    say(f"{pairs.idea.name} against {pairs.name_of_best}, in {pairs.root}")
    left, count = len([*pairs.wanted()]), worker_count(THREADS, options)
    with display(left, count, pairs.row, pairs.split, is_most=True) as screen:

        def on_event(event: TrialEvent) -> None:
            nonlocal num_told
            variant, _, seed = event.folder.partition("/")
            name = pairs.idea.name if variant == change else "best"
            screen.show(replace(event, folder=f"{name}/{seed}" if seed else ""))
            if len(pairs.idea.scores) > num_told:
                decision = pairs.idea.decision(pairs.campaign.max_seeds)
                num_told = decision.pairs
                shown = interval_text(decision, pairs.campaign.metric)
                screen.say(f"{quantity(num_told, 'pair')}, interval {shown}")

        compare(pairs, options, on_event)


def report_decision(
    change: str,
    best: str,
    decision: "Decision",
    metric: "Metric",
    notes: Sequence[str],
    form: str,
) -> None:
    """End with the exit code of a verdict, which is no error."""
    mean, shown = decision.mean, "not known yet"
    if mean is not None:
        shown = f"{mean:+.{metric.digits}f} {metric.difference_unit}"
    report = Report(
        facts=[
            Fact("change", change),
            Fact("against", best),
            Fact("verdict", decision.verdict),
            Fact("pairs", decision.pairs, about=f"of at most {decision.most}"),
            *hidden(max_seeds=decision.most, unit=metric.difference_unit),
            Fact("difference", mean, text=shown),
            Fact("interval", decision.interval, text=interval_text(decision, metric)),
        ],
        notes=notes,
    )
    emit_report(report, form)
    if not decision.is_final:
        raise Exit(PartlyError.exit_code)
    if not decision.is_won:
        raise Exit(CheckError.exit_code)


def interval_text(decision: "Decision", metric: "Metric") -> str:
    if decision.interval is None:
        return "none yet"
    low, high = decision.interval
    share = 100 * (1 - decision.alpha)
    return f"{low:+.{metric.digits}f} to {high:+.{metric.digits}f} ({share:g} % over all looks)"


def plan_of(pairs: "Comparison", options: "Options") -> Report:
    from vitcli.cli.trials import time_fact
    from vitcli.plugins.decide.pairs import refuse_other_precision
    from vitcli.runner.experiment.config import Experiment
    from vitcli.runner.study.estimate import dry_run_trial

    if not pairs.idea.is_final:
        refuse_other_precision(pairs, options)
    is_val = pairs.split == "val"
    costs = [
        dry_run_trial(
            Experiment("decide", spec, pairs.root), pairs.root, options, say, without_test=is_val
        ).total
        for spec in pairs.specs
    ]
    pair = None if None in costs else sum(cost or 0 for cost in costs)
    most = pairs.campaign.max_seeds - len(pairs.idea.scores)
    return Report(
        facts=[
            Fact("change", pairs.idea.name),
            Fact("against", pairs.name_of_best),
            *facts_of(folder=str(pairs.root), split=pairs.split, pairs=len(pairs.idea.scores)),
            time_fact(pair, f"{{}} a pair, {quantity(most, 'pair')} at most"),
        ],
        next=[pairs.idea.command.replace(" --dry-run", "")],
    )
