"""`vitcli predict`: classification of pictures."""

from dataclasses import replace
from typing import Annotated

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import TOP_HELP, exclude, with_code, with_example
from vitcli.runner.errors import summarize_failures

Top = Annotated[
    int | None, Option(min=1, help=TOP_HELP, show_default="5, or 1 for several pictures")
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


@with_example("vitcli predict photo.jpg --top 3", "vitcli predict quickstart pictures --format csv")
@with_code
def predict(
    run: shared.RunOf = None,
    pictures: shared.Pictures = None,
    top: Top = None,
    reject: Reject = None,
    coverage: Coverage = None,
    fit: shared.FitOption = None,
    form: shared.Format = "text",
    device: shared.Device = "auto",
) -> None:
    """Show the most likely classes of pictures, or of folders."""
    from vitcli.cli.live import counted
    from vitcli.runner.data.deep import notes_on
    from vitcli.runner.data.folder import picture_files
    from vitcli.runner.evaluate.predict import Predictor, describe_model, report_of
    from vitcli.runner.evaluate.scores import why_uncalibrated
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.run.record import read_record

    exclude({"--reject": reject, "--coverage": coverage})
    run, images = run_and_pictures("predict", [run, *(pictures or ())])
    chosen = find_run(run) if run is not None else default_run()
    notes: list[str] = []
    predictor = Predictor(chosen, device, on_message=notes.append)
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
    report = report_of(str(chosen.path), done, shown, judged)
    if reject is not None and (reason := why_uncalibrated(read_record(chosen))):
        notes.append(f"note: the probabilities are not calibrated: {reason}")
    emit_report(replace(report, notes=[*notes, *notes_on(predictor.seen)]), form)
    if failures:
        raise summarize_failures(failures, len(files), "images could not be read")
