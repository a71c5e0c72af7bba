"""`vitcli experiments`: the experiment files."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from vitcli.cli import complete
from vitcli.cli.console import emit, emit_exactly, emit_json, say, table
from vitcli.cli.options import Device, Json, group, with_code
from vitcli.runner.text import printable, quantity

commands = group(
    help="List, show, copy and check experiment files.", example="vitcli experiments ls"
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Experiment name or file.",
        autocompletion=complete.any_experiment,
    ),
]


def run_command(name: str) -> str:
    """Return the command that runs an experiment file."""
    from vitcli.runner.experiment.listing import describe_experiment

    commands = {"study": "vitcli ablate", "search": "vitcli search"}
    return commands.get(describe_experiment(name).kind, "vitcli train")


@commands.command()
def ls(json: Json = False) -> None:
    """List the named experiments and the questions they answer.

    \b
    Example:
      vitcli experiments ls
    """
    from vitcli.runner.experiment.config import experiment_files
    from vitcli.runner.experiment.listing import describe_experiment

    files = [describe_experiment(str(path)) for path in experiment_files().values()]
    if json:
        emit_json([asdict(file) for file in files])
        return
    rows = [[file.name, file.kind, " ".join(file.question.split())] for file in files]
    emit(table(["name", "kind", "question"], rows))
    say("next: vitcli experiments show NAME, vitcli train NAME, vitcli ablate STUDY")


@commands.command()
def show(
    name: Name,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Show every field, as a run stores it.")
    ] = False,
    json: Json = False,
) -> None:
    """Show an experiment file, or all its fields.

    \b
    Example:
      vitcli experiments show quickstart
    """
    from vitcli.runner.experiment.config import config_text
    from vitcli.runner.experiment.listing import describe_experiment, read_text
    from vitcli.runner.experiment.purpose import Purpose, purpose_text
    from vitcli.runner.experiment.resolve import resolve_by_name

    about = describe_experiment(name)
    if resolved:
        spec = resolve_by_name(name).spec
        purpose = Purpose(question=about.question, hypothesis=about.hypothesis)
        content = purpose_text(purpose) + config_text(spec)
    else:
        content = read_text(name)
    if json:
        body = {"config": spec.model_dump(mode="json")} if resolved else {"text": content}
        emit_json(asdict(about) | body)
        return
    emit_exactly(printable(content, keep="\n\t"), nl=False)
    say(f"next: {run_command(name)} {shlex.quote(name)}")


@commands.command()
def cp(
    name: Name,
    dest: Annotated[
        Path | None,
        typer.Argument(
            metavar="DEST", help="File or folder to write.", show_default="current folder"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: Json = False,
) -> None:
    """Copy an experiment file so that you can edit it.

    \b
    Example:
      vitcli experiments cp quickstart mine.yaml
    """
    from vitcli.runner.experiment.listing import copy_experiment

    target = copy_experiment(name, dest, force=force)
    if json:
        emit_json({"path": str(target)})
    else:
        emit(str(target))
        file = shlex.quote(str(target))
        run = run_command(str(target))
        say(f"next: edit the file, then vitcli experiments validate {file} && {run} {file}")


@commands.command()
@with_code
def validate(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="EXPERIMENT",
            help="Experiment names or files.",
            autocompletion=complete.any_experiment,
        ),
    ],
    json: Json = False,
) -> None:
    """Check every field and build the models, without training.

    \b
    Example:
      vitcli experiments validate mine.yaml
    """
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.search.validate import validate as check

    verdicts = [check(name) for name in names]
    if json:
        emit_json([asdict(verdict) for verdict in verdicts])
    else:
        for verdict in verdicts:
            emit(f"{'ok   ' if verdict.ok else 'error'}  {verdict.name}: {verdict.detail}")
    wrong = sum(not verdict.ok for verdict in verdicts)
    if wrong:
        files = quantity(len(verdicts), "experiment file")
        raise ConfigError(f"{wrong} of {files} {'is' if wrong == 1 else 'are'} wrong")
    say(f"next: {run_command(names[0])} {shlex.quote(names[0])}")


@commands.command()
@with_code
def check(device: Device = "cpu", json: Json = False) -> None:
    """Check own parts on small trainings.

    The checks: shape and device of the output, finite gradients, an image's output without the
    other images of its batch, and a resumed training that ends with the same bits.

    \b
    Example:
      vitcli experiments check --code part.py
    """
    from vitcli.core.spec.readers import DATA_READERS
    from vitcli.runner.errors import CheckError, ConfigError
    from vitcli.runner.experiment import own_code
    from vitcli.runner.train.check_code import check_code

    reports = check_code(device)
    code = own_code.options()
    data_sets = [n for n, row in DATA_READERS.items() if row.source in own_code.state.files]
    if not reports and not data_sets:
        raise ConfigError("no own part; name a file that defines one: --code part.py")
    wrong = [each for each in reports if each.problem]
    if json:
        emit_json([asdict(each) for each in reports])
    else:
        rows = [
            [each.part, each.field, f"{each.parameters:,}", each.problem or "ok"]
            for each in reports
        ]
        rows += [
            [name, "data.name", "", shlex.join(["vitcli", "data", "check", *code, f"{name}:TEXT"])]
            for name in data_sets
        ]
        emit(table(["part", "field", "parameters", "verdict"], rows))
    if wrong:
        raise CheckError(f"{len(wrong)} of {quantity(len(reports), 'part')} failed")
    for first in reports[:1]:
        if "." in first.field:
            words = ["vitcli", "train", *code, "-s", f"{first.field}={first.part}"]
            say(f"next: {shlex.join(words)}")


@commands.command()
@with_code
def schema(json: Json = False) -> None:
    """Print the JSON schema of experiment files.

    \b
    Example:
      vitcli experiments schema
    """
    from vitcli.runner.experiment.schema import schema as file_schema
    from vitcli.runner.search.definition import SearchFile
    from vitcli.runner.study.definition import StudyFields

    emit_json(file_schema(StudyFields, SearchFile))
