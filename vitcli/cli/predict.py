"""`vitcli predict`: classification of pictures."""

import codecs
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit_exactly, emit_report, say
from vitcli.cli.options import TOP_HELP, exclude, output_option, with_code, with_example
from vitcli.runner.errors import ConfigError, InputError, UserError, summarize_failures

Top = Annotated[
    int | None,
    Option(min=1, help=TOP_HELP, show_default="5, or 1 in text for several pictures"),
]
Reject = Annotated[
    float | None,
    Option(min=0, max=1, help="Accept only pictures whose likeliest class has this probability."),
]
Coverage = Annotated[
    float | None,
    Option(
        help="Accept only pictures with one class in their prediction set. This share of the"
        " sets holds the true class: 0.8, 0.9, 0.95 or 0.99."
    ),
]
FilesFrom = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="File with more pictures, one path a line or with NUL between paths; - is standard"
        " input.",
    ),
]
Output = Annotated[
    Path | None,
    output_option("FILE", "File for the rows, each as soon as it is ready: .csv or .jsonl.", False),
]
Resume = Annotated[
    bool, Option("--resume", help="Continue the file of -o; its pictures are not computed again.")
]
NUM_TOP = 5
ROW_FORMS = ("csv", "jsonl")
"""Forms whose rows are printed while the next pictures are computed."""


@with_example(
    "vitcli predict photo.jpg --top 3",
    "vitcli predict quickstart pictures --format csv",
    "vitcli predict quickstart pictures -o answers.jsonl --resume",
)
@with_code
def predict(
    run: shared.RunOf = None,
    pictures: shared.Pictures = None,
    top: Top = None,
    reject: Reject = None,
    coverage: Coverage = None,
    files_from: FilesFrom = None,
    output: Output = None,
    resume: Resume = False,
    fit: shared.FitOption = None,
    form: shared.RowFormat = "text",
    device: shared.Device = "auto",
) -> None:
    """Show the most likely classes of pictures, or of folders."""
    from vitcli.cli.live import counted
    from vitcli.runner.data.folder import picture_files
    from vitcli.runner.evaluate.answers import AnswerFile, header, report_of, to_line
    from vitcli.runner.evaluate.load import load_classifier, require_classes
    from vitcli.runner.evaluate.weights import default_run

    exclude({"--reject": reject, "--coverage": coverage})
    check_output(output, resume, form)
    listed = [] if files_from is None else listed_files(files_from)
    run, images = run_and_pictures("predict", [run, *(pictures or ())], needs_picture=not listed)
    notes: list[str] = []
    source = default_run().path if run is None else run
    classifier = load_classifier(
        source, device=device, fit=fit, reject=reject, coverage=coverage, on_message=notes.append
    )
    require_classes(classifier, {"--top": top})
    say(classifier.about)
    files, judged = picture_files([*images, *listed], say), (reject, coverage) != (None, None)
    opened: AbstractContextManager[AnswerFile | None] = nullcontext()
    if output:
        opened = AnswerFile(output, classifier, top or NUM_TOP, resume=resume).opened()
    with opened as answers:
        remaining = [file for file in files if not (answers and answers.is_done(file))]
        failures: list[UserError] = [*map(InputError, answers.errors if answers else ())]
        rows: list[Mapping[str, Any]] = []
        write, is_single = answers.write if answers else rows.append, len(files) == 1
        if is_printed := not answers and form in ROW_FORMS:
            say_all(notes)
            if form == "csv":
                emit_exactly(header(classifier.columns))
        for prediction in counted(classifier.stream(remaining), len(remaining), "predicting"):
            row = prediction.to_dict(top or NUM_TOP)
            if is_printed:
                emit_exactly(to_line(row, form))
            else:
                write(row)
            if prediction.error:
                failures.append(InputError(prediction.error))
                say_all([] if is_single else [f"error: {prediction.error}"])
        notes += (seen := classifier.notes())
        say_all(seen if is_printed else [])
        shown = top or (NUM_TOP if is_single else 1)
        report = report_of(classifier, rows, shown, judged)
        if answers:
            report = answers.report(classifier.source, len(files), judged)
    if answers or form == "json" or not (is_printed or (is_single and failures)):
        emit_report(replace(report, notes=notes), "text" if form in ROW_FORMS else form)
    if failures:
        problem = summarize_failures(failures, len(files), "images could not be read")
        raise failures[0] if is_single else problem


def say_all(texts: Iterable[str]) -> None:
    for text in texts:
        say(text)


def check_output(output: Path | None, resume: bool, form: str) -> None:
    if output is None and resume:
        raise ConfigError("--resume continues the file of -o; add -o answers.csv")
    if output and form in ROW_FORMS and output.suffix != f".{form}":
        raise ConfigError(f"-o {output} and --format {form} name two formats; leave out --format")


def listed_files(path: str) -> list[str]:
    """Return the paths in a file, one a line or with NUL between them."""
    from vitcli.runner.data.pictures import picture_bytes

    content = picture_bytes(path).removeprefix(codecs.BOM_UTF8)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # as PowerShell writes it
        content = content.decode("utf-16", "replace").encode()
    names = content.split(b"\0") if b"\0" in content else content.splitlines()
    files = [os.fsdecode(name) for name in names if name]
    if not files:
        raise InputError(f"--files-from {path}: names no picture")
    return files
