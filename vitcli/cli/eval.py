"""`vitcli eval`: the measurement of a trained run."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitcli.cli.console import emit_report, say
from vitcli.cli.options import (
    DataDir,
    Device,
    Format,
    LimitBatches,
    Offline,
    Run,
    exclude,
    with_code,
)
from vitcli.runner.errors import CheckError, ConfigError
from vitcli.runner.text import percent

if TYPE_CHECKING:
    from vitcli.runner.report.report import Report

MinAccuracy = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Exit with code 6 if the accuracy is lower.", show_default=False
    ),
]
ProbeKind = Annotated[
    Literal["linear", "knn"] | None,
    typer.Option(
        help="Measure a classifier on the frozen encoder's features: logistic regression, or"
        " the 20 nearest neighbours.",
        show_default=False,
    ),
]
Labels = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of labelled training images for --probe, balanced by class.",
        show_default="all",
        hidden=True,
    ),
]
ZeroShotFlag = Annotated[
    bool,
    typer.Option(
        "--zero-shot",
        help="Classify by the names of classes alone; the run must be trained with captions.",
    ),
]
ReviewFlag = Annotated[
    bool,
    typer.Option(
        "--review",
        help="Write an offline page of confident errors, suspect labels, and copies with two"
        " labels; it saves corrections of a folder of pictures.",
    ),
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help='Names of the classes for --zero-shot, such as "cat,fire truck".',
        show_default="the classes of the data set",
        hidden=True,
    ),
]


@with_code
def evaluate(
    run: Run,
    split: Annotated[
        Literal["test", "val", "train"], typer.Option(help="Images to measure.")
    ] = "test",
    tta: Annotated[
        bool,
        typer.Option("--tta", help="Average over each image and its mirror image.", hidden=True),
    ] = False,
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint.", show_default="last", hidden=True)
    ] = None,
    form: Format = "text",
    predictions: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="File for logits and labels.", hidden=True),
    ] = None,
    min_accuracy: MinAccuracy = None,
    probe: ProbeKind = None,
    labels: Labels = None,
    zero_shot: ZeroShotFlag = False,
    classes: ClassNames = None,
    review: ReviewFlag = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    limit_batches: LimitBatches = None,
    offline: Offline = False,
) -> None:
    """Measure accuracy, loss, calibration and confusion matrix.

    \b
    Example:
      vitcli eval quickstart
      vitcli eval quickstart --probe linear
      vitcli eval quickstart --review
    """
    common: dict[str, Any] = {
        "split": split,
        "step": step,
        "device": device,
        "data_dir": data_dir,
        "limit_batches": limit_batches,
        "offline": offline,
    }
    ways = {"--review": review, "--probe": probe, "--zero-shot": zero_shot}
    exclude(ways | {"--tta": tta})
    exclude(ways | {"--predictions": predictions})
    if classes is not None and not zero_shot:
        raise ConfigError("--classes names the classes for --zero-shot; add --zero-shot")
    if labels is not None and probe is None:
        raise ConfigError("--labels is the number of labels for a probe; add --probe linear")
    accuracy: float | None
    if review:
        report, accuracy = review_report(run, common)
    elif zero_shot:
        from vitcli.runner.evaluate.zero_shot import zero_shot_report

        names = None if classes is None else classes.split(",")
        report, accuracy = zero_shot_report(run, names, on_message=say, **common)
    elif probe is not None:
        from vitcli.cli.live import stages
        from vitcli.runner.evaluate.probe import probe_run

        with stages() as on_stage:
            probed = probe_run(
                run, probe, labels=labels, on_message=say, on_stage=on_stage, **common
            )
        report, accuracy = probed.report(), probed.trained.accuracy
    else:
        from vitcli.runner.evaluate.scores import evaluate_run

        measured = evaluate_run(run, tta=tta, predictions=predictions, on_message=say, **common)
        report = measured.report()
        accuracy = measured.scores.accuracy if measured.scores else None
    emit_report(report, form)
    if min_accuracy is None:
        return
    if accuracy is None:
        raise ConfigError(
            f"--min-accuracy: {run} is not a classifier, or no image has one of the classes;"
            " add --probe linear"
        )
    if accuracy < min_accuracy:
        raise CheckError(
            f"{run}: accuracy {percent(accuracy)} is below --min-accuracy {min_accuracy}"
        )


def review_report(run: str, common: dict[str, Any]) -> "tuple[Report, float]":
    from vitcli.cli.live import stages
    from vitcli.runner.data.find import own_path
    from vitcli.runner.data.listing import split_of
    from vitcli.runner.evaluate.review import review_run
    from vitcli.runner.visualize.review_page import write_review

    if common["split"] != "test":
        raise ConfigError("--review shows the test and the training images; leave out --split")
    options = {name: value for name, value in common.items() if name != "split"}
    with stages() as on_stage:
        review = review_run(run, on_message=say, on_stage=on_stage, **options)
    report = review.report(write_review(review, common["data_dir"]))
    name = review.found.spec.data.name
    if name.startswith("imagefolder:") and (root := own_path(name, common["data_dir"])):
        splits = [path for path in sorted(root.iterdir()) if split_of(path.name) == "test"]
        pictures = shlex.quote(str(next((path for path in splits if path.is_dir()), root)))
        command = f"{review.found.run.command('predict')} {pictures} --reject 0.8 --format csv"
        report = replace(report, next=[*report.next, command])
    return report, review.accuracy
