"""`vitcli predict`: classification of pictures."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.console import emit_measured, say
from vitcli.cli.options import ChosenRun, Device, FitOption, Images, Json
from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import percent

if TYPE_CHECKING:
    from vitcli.runner.evaluate.predict import Prediction


class Format(StrEnum):
    """The formats of the output."""

    text = "text"
    csv = "csv"
    json = "json"


def predict(
    images: Images,
    run: ChosenRun = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of classes to show per picture.",
            show_default="5, or 1 for several pictures",
        ),
    ] = None,
    fit: FitOption = None,
    form: Annotated[Format, typer.Option("--format", help="Format of the output.")] = Format.text,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show the most likely classes of pictures, or of folders.

    \b
    Example:
      vitcli predict photo.jpg --top 3
    """
    from vitcli.cli.live import counted
    from vitcli.runner.data.folder import picture_files
    from vitcli.runner.errors import summarize_failures
    from vitcli.runner.evaluate.predict import Predictor, describe_model
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.run.folder import find_run

    chosen = find_run(run) if run is not None else default_run()
    predictor = Predictor(chosen, device)
    say(describe_model(predictor))
    files = picture_files(images, say)
    found = predictor.predict_each(files, top or (5 if len(files) == 1 else 1), fit and fit.value)
    done = list(counted(found, len(files), "predicting"))
    failures = [each.error for each in done if each.error]
    if failures and len(files) == 1:
        raise failures[0]
    for error in failures:
        say(f"error: {error}")
    documents = [document(each, str(chosen.path)) for each in done]
    emit_measured(Format.json if json else form, documents, [shown_table(done)], csv_rows(done))
    if failures:
        raise summarize_failures(failures, len(files), "images could not be read")


def document(found: "Prediction", run: str) -> dict[str, Any]:
    """Return a prediction as JSON values."""
    return {
        "image": found.path,
        "run": run,
        "top": [{"class": name, "probability": share} for name, share in found.top],
        "error": str(found.error) if found.error else None,
    }


def shown_table(done: Sequence["Prediction"]) -> Table:
    """Return a table with a row per class; the file stands in the first row of each picture."""
    rows = []
    for each in done:
        cells = [[name, percent(share, 1)] for name, share in each.top]
        for i, row in enumerate(cells or [["cannot be read", "-"]]):
            rows.append([each.path if i == 0 else "", *row])
    return make_table(["file", "class", "probability"], rows, numeric=[2])


def csv_rows(done: Sequence["Prediction"]) -> Iterator[Sequence[Any]]:
    """Yield a header and a row per class; a picture that cannot be read has its error."""
    yield ["file", "class", "probability", "error"]
    for each in done:
        if each.error:
            yield [each.path, "", "", each.error]
        yield from ([each.path, name, share, ""] for name, share in each.top)
