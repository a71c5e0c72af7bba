"""`vitcli table`: the table, figure and page of results that another program trained."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitcli.cli.ablate import Details, check_format
from vitcli.cli.console import emit_exactly, line_width, say
from vitcli.runner.text import portable

if TYPE_CHECKING:
    from vitcli.runner.study.result import StudyResult


def table(
    results: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="CSV file with the columns variant, seed and score; also an export of W&B or"
            " MLflow.",
            show_default=False,
        ),
    ],
    score: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the score.",
            show_default="score, or the only other column",
        ),
    ] = None,
    variant: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the variant.",
            show_default="variant, or W&B's Group",
        ),
    ] = None,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of the seed, or of what else pairs the trials.",
            show_default="seed",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="VARIANT",
            help="Variant that the others are compared with.",
            show_default="the first one",
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="percent|fraction|none",
            help="How scores are written.",
            show_default="by metric and largest score",
        ),
    ] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option(
            "--lower-is-better/--higher-is-better",
            help="Which scores are better.",
            show_default="as the metric's; higher",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="Margin of equivalence, in the unit of the table.", show_default=False),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Table format: text, md, latex, csv, json or html.")
    ] = "text",
    details: Details = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Also write the tables, the figure and report.html into this folder.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare results that any program trained, from a CSV file with one trial a row.

    The table, the statistics and the refusals are those of 'vitcli ablate'. Nothing is trained.

    \b
    Example:
      vitcli table results.csv
      vitcli table wandb_export.csv --variant model --score val_acc -o report
    """
    from vitcli.runner.study.results_file import Choices, read_results
    from vitcli.runner.study.table import render

    check_format(form)
    choices = Choices(
        score=score,
        variant=variant,
        seed=seed,
        baseline=baseline,
        unit=unit,
        lower_is_better=lower_is_better,
        margin=margin,
    )
    command = shlex.join(["vitcli", *map(portable, sys.argv[1:])])
    doc, unused = read_results(results, choices, command)
    if unused:
        say(f"not used: {', '.join(unused)}")
    if doc.origin:
        say(doc.origin.reading)
    emit_exactly(render(doc, form, line_width(), details=details))
    if output is not None:
        from vitcli.runner.study.publish import publish_outside

        publish_outside(doc, output)
        say(f"report  {output / 'report.html'}")
    refuse_gaps_of(doc)


def refuse_gaps_of(doc: "StudyResult") -> None:
    """Raise PartlyError (exit code 3) if a trial has no result, after naming the trials."""
    from vitcli.cli.study_output import refuse_gaps
    from vitcli.runner.study.states import TrialState

    states = {
        f"{row.variant}/seed{trial.seed}": TrialState(state=trial.state)
        for row in doc.rows
        for trial in row.trials
    }
    refuse_gaps(states, "add them to the file")
