"""`vitcli table`: the table, figure and page of results that another program trained."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from vitcli.cli.ablate import refuse_gaps
from vitcli.cli.console import emit_exactly, line_width, say
from vitcli.cli.options import Caption, Details, Json, output_option, with_example
from vitcli.runner.report.tables import csv_text
from vitcli.runner.text import portable

Column = partial(Option, metavar="COLUMN")
Score = Annotated[str | None, Column(help="Column of the score, if it is not score.")]
VariantColumn = Annotated[str | None, Column("--variant", help="Column of the variant.")]
Pairs = Annotated[str | None, Column("--pairs", help="Column that pairs trials, if not seed.")]
Unit = Annotated[
    Literal["percent", "fraction", "none"] | None, Option(help="How scores are written.")
]
LowerIsBetter = Annotated[
    bool | None,
    Option(
        "--lower-is-better/--higher-is-better",
        help="Direction of the score, if its name does not say it.",
    ),
]
Margin = Annotated[float | None, Option(help="Margin of equivalence, in the unit of the table.")]


@with_example(
    "vitcli table results.csv",
    "vitcli table wandb_export.csv --variant model --score val_acc -o report",
)
def table(
    results: Annotated[Path, Argument(metavar="FILE", help="CSV file, one trial a row.")],
    score: Score = None,
    variant: VariantColumn = None,
    pairs: Pairs = None,
    baseline: Annotated[
        str | None, Option(metavar="VARIANT", help="Baseline, if it is not the first one.")
    ] = None,
    unit: Unit = None,
    lower_is_better: LowerIsBetter = None,
    margin: Margin = None,
    plan: Annotated[int | None, Option(metavar="N", help="Number of planned seeds.")] = None,
    form: Annotated[
        Literal["text", "md", "latex", "csv", "json", "html"],
        Option("--format", help="Format of the table."),
    ] = "text",
    caption: Caption = None,
    details: Details = False,
    output: Annotated[
        Path | None, output_option("FOLDER", "Folder for tables, figure and report.html.")
    ] = None,
    json: Json = False,
) -> None:
    """Compare results that any program trained, from a CSV file with one trial a row.

    The table, the statistics and the refusals are those of 'vitcli ablate'. Nothing is trained. A
    message says how the scores were read. Exports of W&B, MLflow, pandas and Excel can be read.
    """
    from vitcli.plugins.table.results_file import Choices, read_text
    from vitcli.runner.study.page import publish_outside
    from vitcli.runner.study.table import render

    form = "json" if json else form
    choices = Choices.of(
        score=score,
        variant=variant,
        seed=pairs,
        baseline=baseline,
        unit=unit,
        lower_is_better=lower_is_better,
        margin=margin,
        plan=plan,
    )
    typed = (portable(word) if word[:1] in ("/", "~") else word for word in sys.argv[1:])
    command = shlex.join(["vitcli", *typed])
    doc, unused, _ = read_text(csv_text(results), str(results), choices, command)
    if unused:
        say(f"not used: {', '.join(unused)}")
    if doc.origin:
        say(doc.origin.reading)
    emit_exactly(render(doc, form, line_width(), details=details, caption=caption))
    if output is not None:
        publish_outside(doc, output, results)
        say(f"report  {output / 'report.html'}")
    states = {f"{row.variant}/seed{run.seed}": run for row in doc.rows for run in row.trials}
    refuse_gaps(states, "add them to the file")
