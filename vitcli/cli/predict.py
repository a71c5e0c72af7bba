"""`vitcli predict`: what is on a picture."""

from typing import Annotated

import typer

from vitcli.cli.console import emit, emit_json, percent, say
from vitcli.cli.options import ChosenRun, Device, Fit, FitOption, Json


def predict(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Files; - is stdin.")],
    run: ChosenRun = None,
    top: Annotated[int, typer.Option(min=1, help="So many classes an image.")] = 5,
    fit: FitOption = Fit.crop,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Name the likeliest classes of pictures, with probabilities."""
    from vitcli.runner.errors import InputError, partly
    from vitcli.runner.evaluate.predict import Prediction, Predictor, introduced
    from vitcli.runner.evaluate.weights import default_run
    from vitcli.runner.run.folder import find_run
    from vitcli.runner.text import printable

    chosen = find_run(run) if run else default_run()
    predictor = Predictor(chosen, device)
    say(introduced(predictor))
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
        raise partly(failures, len(images), "images could not be read")
