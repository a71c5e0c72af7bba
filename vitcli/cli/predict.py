"""`vitcli predict`: classification of pictures."""

from typing import Annotated

import typer

from vitcli.cli.console import emit, emit_json, percent, say
from vitcli.cli.options import ChosenRun, Device, Fit, FitOption, Json


def predict(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Picture files; - is standard input.")
    ],
    run: ChosenRun = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 5,
    fit: FitOption = Fit.crop,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Show the most likely classes of pictures.

    \b
    Example:
      vitcli predict photo.jpg --top 3
    """
    from vitcli.runner.errors import InputError, summarize_failures
    from vitcli.runner.evaluate.predict import Prediction, Predictor, describe_model
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.text import printable

    chosen = find_run(run) if run else default_run()
    predictor = Predictor(chosen, device)
    say(describe_model(predictor))
    done: list[Prediction] = []
    failures: list[InputError] = []
    for image in images:
        try:
            done.append(predictor.predict(image, top, fit.value))
        except InputError as error:
            if len(images) == 1:
                raise
            failures.append(error)
            say(f"error: {error}")
            continue
        if not json:
            classes = ", ".join(f"{name} {percent(share, 1)}" for name, share in done[-1].top)
            emit(f"{printable(image)}: {classes}")
    if json:
        emit_json(
            [
                {
                    "image": each.path,
                    "run": str(chosen.path),
                    "top": [{"class": name, "probability": share} for name, share in each.top],
                }
                for each in done
            ]
        )
    if failures:
        raise summarize_failures(failures, len(images), "images could not be read")
