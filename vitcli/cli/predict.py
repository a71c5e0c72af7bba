"""`vitcli predict`: classification of pictures."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit_measured, say
from vitcli.cli.options import TOP_HELP, Device, FitOption, Json, Pictures, RunOf, exclude
from vitcli.runner.tables import Table, make_table
from vitcli.runner.text import percent, quantity, shorten

if TYPE_CHECKING:
    from vitcli.runner.evaluate.predict import Prediction


Top = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=TOP_HELP,
        show_default="5, or 1 for several pictures",
    ),
]
Reject = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Accept only pictures whose likeliest class has this probability."
    ),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        help="Accept only pictures with one class in their prediction set. This share of the"
        " sets holds the true class: 0.8, 0.9, 0.95 or 0.99."
    ),
]


def predict(
    run: RunOf = None,
    pictures: Pictures = None,
    top: Top = None,
    reject: Reject = None,
    coverage: Coverage = None,
    fit: FitOption = None,
    form: Annotated[
        Literal["text", "csv", "json"], typer.Option("--format", help="Format of the output.")
    ] = "text",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show the most likely classes of pictures, or of folders.

    \b
    Example:
      vitcli predict photo.jpg --top 3
      vitcli predict quickstart pictures --format csv
    """
    from vitcli.cli.live import counted
    from vitcli.runner.data.folder import picture_files
    from vitcli.runner.errors import summarize_failures
    from vitcli.runner.evaluate.predict import Predictor, describe_model
    from vitcli.runner.evaluate.scores import why_uncalibrated
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.run.record import read_record

    exclude({"--reject": reject, "--coverage": coverage})
    run, images = run_and_pictures("predict", [run, *(pictures or ())])
    chosen = find_run(run) if run is not None else default_run()
    predictor = Predictor(chosen, device)
    say(describe_model(predictor.run, predictor.spec))
    threshold = None if coverage is None else predictor.set_threshold(coverage)
    files = picture_files(images, say)
    shown = top or (5 if len(files) == 1 else 1)
    found = predictor.predict_each(files, max(2, shown), fit, reject or 0, threshold)
    done = list(counted(found, len(files), "predicting"))
    failures = [prediction.error for prediction in done if prediction.error]
    if failures and len(files) == 1:
        raise failures[0]
    for error in failures:
        say(f"error: {error}")
    judged = reject is not None or coverage is not None
    documents = [document(prediction, str(chosen.path), shown, judged) for prediction in done]
    rows = csv_rows(done, judged)
    emit_measured("json" if json else form, documents, [shown_table(done, shown)], rows)
    if judged:
        if reject is not None and (reason := why_uncalibrated(read_record(chosen))):
            say(f"note: the probabilities are not calibrated: {reason}")
        accepted = sum(prediction.is_accepted for prediction in done)
        say(f"accepted {accepted:,} of {quantity(len(done), 'picture')}")
    if failures:
        raise summarize_failures(failures, len(files), "images could not be read")


def document(prediction: "Prediction", run: str, num_top: int, judged: bool) -> dict[str, Any]:
    """Return a prediction as JSON values; ``accepted`` is null unless pictures are judged."""
    return {
        "image": prediction.path,
        "run": run,
        "top": [{"class": name, "probability": share} for name, share in prediction.top[:num_top]],
        "accepted": prediction.is_accepted if judged else None,
        "set": prediction.prediction_set,
        "error": str(prediction.error) if prediction.error else None,
    }


def shown_table(done: Sequence["Prediction"], num_top: int) -> Table:
    """Return a table with a row per class; the file stands in the first row of each picture."""
    rows = []
    for each in done:
        cells = [[name, percent(share, 1)] for name, share in each.top[:num_top]]
        if cells and not each.is_accepted:
            guesses = " or ".join(each.prediction_set or [cells[0][0]])
            cells[0][0] = f"none ({shorten(guesses, 40)}?)"
        for i, row in enumerate(cells or [["cannot be read", "-"]]):
            rows.append([each.path if i == 0 else "", *row])
    return make_table(["file", "class", "probability"], rows, numeric=[2])


def csv_rows(done: Sequence["Prediction"], judged: bool) -> Iterator[Sequence[Any]]:
    """Yield a header and a row per picture, with its error if it cannot be read.

    ``accepted`` is empty unless pictures are judged, by ``--reject`` or ``--coverage``.
    """
    has_sets = any(each.prediction_set is not None for each in done)
    best = ["class", "probability", "second_class", "second_probability"]
    yield ["file", *best, "accepted", *(["set"] if has_sets else []), "error"]
    for each in done:
        cells = [cell for name, share in each.top[:2] for cell in (name, f"{share:.6f}")]
        members = [";".join(each.prediction_set or ())] if has_sets else []
        accepted = str(each.is_accepted).lower() if judged else ""
        yield [each.path, *cells, *[""] * (4 - len(cells)), accepted, *members, each.error]
