"""`vitcli decide`: better, or noise."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Format
from vitcli.runner.errors import CheckError, ConfigError, PartlyError
from vitcli.runner.report.report import Fact, Report
from vitcli.runner.text import portable, quantity


def decide(
    change: Annotated[
        str | None,
        typer.Argument(metavar="[CHANGE]", help="Variant to judge, if the file has several."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="CSV file, one trial a row, trained anywhere."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="BEST", help="The best so far, if it is not the first variant."),
    ] = None,
    max_seeds: Annotated[
        int,
        typer.Option(min=5, max=64, help="Number of pairs of seeds at which the comparison ends."),
    ] = 16,
    margin: Annotated[
        float | None,
        typer.Option(help="Margin of equivalence, in the unit of the table."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the score, if it is not score.")
    ] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option(
            "--lower-is-better/--higher-is-better",
            help="Direction of the score, if its name does not say it.",
        ),
    ] = None,
    form: Format = "text",
) -> None:
    """Decide whether a change is better than the best so far, after as few seeds as possible.

    Both have the same seeds. Ask again after each pair: a wrong "better" or "worse" comes in at
    most 5 % of the comparisons, however often one asks. Exit code 0: better, or equivalent within
    --margin; 6: another verdict; 3: one more pair is needed.

    \b
    Example:
      vitcli decide --csv results.csv
    """
    from vitcli.plugins.decide.csv_file import judge
    from vitcli.plugins.table.results_file import Choices, read_text
    from vitcli.runner.report.tables import csv_text

    if results is None:
        raise ConfigError("name a file of results: --csv FILE")
    choices = Choices.of(
        score=score, baseline=against, lower_is_better=lower_is_better, margin=margin
    )
    command = shlex.join(["vitcli", *map(portable, sys.argv[1:])])
    document, _ = read_text(csv_text(results), str(results), choices, command)
    judged = judge(document, change, most=max_seeds, margin=margin)
    decision, name = judged.decision, judged.change
    if document.origin:
        say(document.origin.reading)
    emit_report(
        Report(
            facts=[
                Fact("change", name),
                Fact("against", document.rows[0].variant),
                Fact("verdict", decision.verdict),
                Fact("pairs", decision.pairs, about=f"of at most {decision.most}"),
                Fact("difference", decision.mean, text=judged.difference_text),
                Fact("interval", decision.interval, text=judged.interval_text),
            ],
            notes=judged.notes,
        ),
        form,
    )
    if not decision.is_final:
        raise PartlyError(f"one more pair is needed: {judged.next_pair}")
    if decision.verdict not in ("better", *(["equivalent"] if margin else [])):
        raise CheckError(
            f"{name} is {decision.verdict} after {quantity(decision.pairs, 'pair')} of seeds"
        )
