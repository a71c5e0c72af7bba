"""`vitcli eval`: the measurement of a trained run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import Rare, exclude, with_code, with_example, with_plugins
from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.files import require_replaceable
from vitcli.runner.text import percent

MinAccuracy = Annotated[
    float | None, Option(min=0, max=1, help="Exit with code 6 if the accuracy is lower.")
]


@with_example("vitcli eval quickstart")
@with_plugins("eval")
@with_code
def evaluate(
    run: shared.Run,
    split: shared.Split = "test",
    tta: Annotated[
        Literal["mirror", "shift"] | None,
        Rare(
            help="Average over views of each image: its mirror image, or also copies shifted by a"
            " pixel (six views)."
        ),
    ] = None,
    step: Annotated[int | None, Rare(help="Step of the checkpoint.", show_default="last")] = None,
    form: shared.Format = "text",
    predictions: Annotated[
        Path | None, Rare(metavar="FILE.npz", help="File for logits and labels.")
    ] = None,
    min_accuracy: MinAccuracy = None,
    device: shared.Device = "auto",
    data_dir: shared.DataDir = None,
    limit_batches: shared.LimitBatches = None,
    offline: shared.Offline = False,
    *,
    added: Sequence[tuple[str, object, Callable[..., Any]]],
) -> None:
    """Measure accuracy, loss, calibration and confusion matrix."""
    common: dict[str, Any] = {
        "split": split,
        "step": step,
        "device": device,
        "data_dir": data_dir,
        "limit_batches": limit_batches,
        "offline": offline,
    }
    ways = {option: value for option, value, _ in added}
    exclude(ways | {"--tta": tta})
    exclude(ways | {"--predictions": predictions})
    # A way that was not asked for refuses options that belong to it, before another measures.
    last = sorted(added, key=lambda way: bool(way[1]))
    answer = next(filter(None, [way(run, common) for _, _, way in last]), None)
    if answer is None:
        from vitcli.runner.evaluate.scores import evaluate_run
        from vitcli.runner.run.folder import FILES, RunDir

        if predictions and predictions.name in FILES and RunDir(predictions.parent).exists:
            raise ConfigError(f"{predictions} is a file of a run itself; choose another name")
        if predictions:
            require_replaceable(predictions, "predictions file", rb"(logits|masked_mse)\.npy")
        measured = evaluate_run(run, tta=tta, predictions=predictions, on_message=say, **common)
        answer = measured.report(), measured.scores.accuracy if measured.scores else None
    report, accuracy = answer
    emit_report(report, form)
    if min_accuracy is None:
        return
    if accuracy is None and (asked := next((name for name, value in ways.items() if value), "")):
        raise ConfigError(f"--min-accuracy: {asked} has no accuracy here")
    if accuracy is None:
        raise ConfigError(
            f"--min-accuracy: {run} is not a classifier, or no image has one of the classes;"
            " add --probe linear"
        )
    if accuracy < min_accuracy:
        raise CheckError(
            f"{run}: accuracy {percent(accuracy)} is below --min-accuracy {min_accuracy}"
        )
