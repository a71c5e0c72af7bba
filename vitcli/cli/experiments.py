"""`vitcli experiments`: the experiment files."""

import json as json_text
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitcli import plugin
from vitcli.cli import complete
from vitcli.cli.console import emit_exactly, emit_report, say
from vitcli.cli.options import Device, Format, Json, group, with_code
from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.report.report import DataTable, Field, Report, facts_of
from vitcli.runner.text import printable, quantity

commands = group(
    help="List, show, copy and check experiment files.", example="vitcli experiments ls"
)

Name = Annotated[
    str,
    Argument(
        metavar="EXPERIMENT",
        help="Experiment name or file.",
        autocompletion=complete.experiment,
    ),
]


def run_command(name: str) -> str:
    from vitcli.runner.experiment.kinds import FILE_KINDS
    from vitcli.runner.experiment.listing import describe_experiment

    commands = {kind.name: kind.command for kind in FILE_KINDS.values()}
    return f"vitcli {commands.get(describe_experiment(name).kind, 'train')}"


@commands.command(example="vitcli experiments ls")
def ls(form: Format = "text") -> None:
    """List the named experiments and the questions they answer."""
    from vitcli.runner.experiment.config import experiment_files
    from vitcli.runner.experiment.listing import describe_experiment

    rows = [asdict(describe_experiment(str(path))) for path in experiment_files().values()]
    shown = {"name", "kind", "question"}
    fields = [Field(name, text=one_line, is_shown=name in shown) for name in rows[0]]
    following = ["vitcli experiments show NAME", "vitcli train NAME", "vitcli ablate STUDY"]
    table = DataTable("experiments", fields, rows)
    emit_report(Report(tables=[table], next=following), form)


def one_line(text: str) -> str:
    return " ".join(text.split())


@commands.command(example="vitcli experiments show quickstart")
def show(name: Name, json: Json = False) -> None:
    """Show an experiment file."""
    from vitcli.runner.experiment.listing import describe_experiment, read_text

    about, content = describe_experiment(name), read_text(name)
    if json:
        emit_report(Report(facts=facts_of(**asdict(about), text=content)), "json")
        return
    emit_exactly(printable(content, keep="\n\t"), nl=False)
    say(f"next: {run_command(name)} {shlex.quote(name)}")


@commands.command(example="vitcli experiments cp quickstart mine.yaml")
def cp(
    name: Name,
    dest: Annotated[
        Path | None,
        Argument(metavar="DEST", help="File or folder to write.", show_default="current folder"),
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace an existing file.")] = False,
    form: Format = "text",
) -> None:
    """Copy an experiment file so that you can edit it."""
    from vitcli.runner.experiment.listing import copy_experiment

    target = copy_experiment(name, dest, force=force)
    file = shlex.quote(str(target))
    run = run_command(str(target))
    following = f"edit the file, then vitcli experiments validate {file} && {run} {file}"
    emit_report(Report(facts=facts_of(path=str(target)), next=[following]), form)


@commands.command(example="vitcli experiments validate mine.yaml")
@with_code
def validate(
    names: Annotated[
        list[str],
        Argument(
            metavar="EXPERIMENT",
            help="Experiment names or files.",
            autocompletion=complete.experiment,
        ),
    ],
    form: Format = "text",
) -> None:
    """Check every field and build the models, without training."""
    from vitcli.runner.study.validate import validate as check

    rows = [check(name) for name in names]
    wrong = sum(not row["ok"] for row in rows)
    following = [] if wrong else [f"{run_command(names[0])} {shlex.quote(names[0])}"]
    columns: list[Field | str] = ["name", "ok", "detail", Field("parameters", is_shown=False)]
    table = DataTable("experiments", columns, rows)
    emit_report(Report(tables=[table], next=following), form)
    if wrong:
        files = quantity(len(rows), "experiment file")
        raise ConfigError(f"{wrong} of {files} {'is' if wrong == 1 else 'are'} wrong")


@commands.command(example="vitcli experiments check --code part.py")
@with_code
def check(device: Device = "cpu", form: Format = "text") -> None:
    """Check own parts on small trainings.

    The checks: shape and device of the output, finite gradients, an image's output without the
    other images of its batch, and a resumed training that ends with the same bits.
    """
    from vitcli.core.spec.data import DATA_READERS
    from vitcli.runner.experiment.config import typed_command
    from vitcli.runner.train.check_code import check_code

    reports = check_code(device)
    data_sets = [name for name, row in DATA_READERS.items() if row.source]
    if not reports and not data_sets:
        raise ConfigError("no own part; name a file that defines one: --code part.py")
    wrong = [each for each in reports if each.problem]
    verdict = Field("problem", "verdict", text=lambda problem: problem or "ok")
    following = [
        shlex.join(typed_command("train", "-s", f"{first.field}={first.part}"))
        for first in reports[:1]
        if "." in first.field and not wrong
    ]
    if "data check" in plugin.commands():
        following += [shlex.join(typed_command("data check", f"{name}:TEXT")) for name in data_sets]
    rows = [asdict(part) for part in reports]
    table = DataTable("parts", ["part", "field", "parameters", verdict], rows)
    emit_report(Report(tables=[table], next=following), form)
    if wrong:
        raise CheckError(f"{len(wrong)} of {quantity(len(reports), 'part')} failed")


@commands.command(example="vitcli experiments schema")
@with_code
def schema(json: Json = False) -> None:
    """Print the JSON schema of experiment files."""
    from vitcli.runner.experiment.listing import file_schema

    emit_exactly(json_text.dumps(file_schema(), indent=2))
