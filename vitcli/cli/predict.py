"""`vitcli predict`: what is on a picture."""

from typing import Annotated

import typer

from vitcli.cli.app import ChosenRun, Device, Fit, FitOption, Json, app
from vitcli.cli.console import emit, emit_json, percent, say


@app.command()
def predict(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Files; - is stdin.")],
    run: ChosenRun = None,
    top: Annotated[int, typer.Option(min=1, help="So many classes an image.")] = 5,
    fit: FitOption = Fit.crop,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Name the likeliest classes of pictures, with probabilities."""
    from vitcli.runner.errors import InputError, UserError
    from vitcli.runner.evaluate import Prediction, Predictor, default_run, introduced
    from vitcli.runner.run_dir import find_run

    chosen = find_run(run) if run else default_run()
    predictor = Predictor(chosen, device)
    say(introduced(predictor))
    done: list[Prediction] = []
    failures: list[str] = []
    for image in images:
        try:
            done.append(predictor.predict(image, top, fit.value))
        except InputError as error:
            failures.append(str(error))
            say(f"error: {error}")
            continue
        if not json:
            classes = ", ".join(f"{name} {percent(share, 1)}" for name, share in done[-1].top)
            emit(f"{image}: {classes}")
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
        problem = UserError(f"{len(failures)} of {len(images)} images could not be read")
        problem.exit_code = 3 if done else InputError.exit_code
        raise problem
