"""`vitcli eval`: the measurement of a trained run."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli.console import emit_measured, line_width, say
from vitcli.cli.options import DataDir, Device, Json, LimitBatches, Offline, Run
from vitcli.runner.tables import Table, make_table, narrowest
from vitcli.runner.text import percent

if TYPE_CHECKING:
    from vitcli.core.metrics.classification import Scores
    from vitcli.runner.evaluate.scores import Evaluation


class Format(StrEnum):
    """The formats of the output."""

    text = "text"
    md = "md"
    csv = "csv"
    json = "json"


KNOWN = ("class", "accuracy", "precision")
"""The first columns of the table of classes. The accuracy of a class is its recall."""


class Probe(StrEnum):
    """The classifiers on frozen features."""

    linear = "linear"
    knn = "knn"


class Split(StrEnum):
    """The splits of a data set."""

    test = "test"
    val = "val"
    train = "train"


MinAccuracy = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, help="Exit with code 6 if the accuracy is lower.", show_default=False
    ),
]
ProbeKind = Annotated[
    Probe | None,
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


def evaluate(
    run: Run,
    split: Annotated[Split, typer.Option(help="Images to measure.")] = Split.test,
    tta: Annotated[
        bool,
        typer.Option("--tta", help="Average over each image and its mirror image.", hidden=True),
    ] = False,
    step: Annotated[
        int | None,
        typer.Option(help="Step of the checkpoint.", show_default="last", hidden=True),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Format of the output.")] = Format.text,
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
    json: Json = False,
) -> None:
    """Measure accuracy, loss, calibration and confusion matrix.

    \b
    Example:
      vitcli eval quickstart
      vitcli eval quickstart --probe linear
      vitcli eval quickstart --review
    """
    from vitcli.runner.errors import ConfigError

    form = Format.json if json else form
    common: dict[str, Any] = {
        "split": split,
        "step": step,
        "device": device,
        "data_dir": data_dir,
        "limit_batches": limit_batches,
        "offline": offline,
    }
    accuracy: float | None
    given = {
        "--review": review,
        "--probe": probe,
        "--zero-shot": zero_shot,
        "--tta": tta,
        "--predictions": predictions,
    }
    if classes is not None and not zero_shot:
        raise ConfigError("--classes names the classes for --zero-shot; add --zero-shot")
    if probe is None:
        refuse_labels(labels)
    if review:
        refuse_other_options("--review", given)
        from vitcli.cli.review import print_review

        accuracy = print_review(run, form, common)
    elif zero_shot:
        refuse_other_options("--zero-shot", given)
        accuracy = print_zero_shot(run, classes, form, common)
    elif probe is not None:
        refuse_other_options("--probe", given)
        accuracy = print_probe(run, probe, labels, form, common)
    else:
        accuracy = print_evaluation(run, tta, predictions, form, common)
    if min_accuracy is not None:
        check_accuracy(run, accuracy, min_accuracy)


def print_evaluation(
    run: str, tta: bool, predictions: Path | None, form: Format, common: dict[str, Any]
) -> float | None:
    """Measure and print what the task measures; return the accuracy if it classifies."""
    from vitcli.runner.evaluate.scores import evaluate_run

    found = evaluate_run(run, tta=tta, predictions=predictions, on_message=say, **common)
    emit_measured(form, document(found), tables(found, form), csv_rows(found))
    if found.scores is None:
        return None
    warn_if_no_better(found.scores, found.class_names)
    return found.scores.accuracy


def warn_if_no_better(scores: "Scores", names: Sequence[str]) -> None:
    """Warn if always answering the most frequent class would be as accurate as the model."""
    majority, share = scores.majority
    if scores.accuracy <= share:
        say(
            f"warning: accuracy {percent(scores.accuracy)} is no better than always answering"
            f" {names[majority]}, which would be right for {percent(share)}"
        )


def balance(scores: "Scores", names: Sequence[str]) -> list[tuple[str, str]]:
    """Return rows of text about classes that do not have equally many images."""
    if scores.has_equal_classes:
        return []
    majority, share = scores.majority
    return [
        ("balanced accuracy", f"{percent(scores.balanced_accuracy)} (mean of the classes)"),
        ("largest class", f"{names[majority]}, {percent(share)} of the images"),
    ]


def print_probe(
    run: str, kind: Probe, labels: int | None, form: Format, common: dict[str, Any]
) -> float:
    """Measure and print a probe; return its accuracy."""
    from vitcli.cli import probe
    from vitcli.cli.live import stages
    from vitcli.runner.evaluate.probe import probe_run

    with stages() as on_stage:
        found = probe_run(
            run, kind.value, labels=labels, on_message=say, on_stage=on_stage, **common
        )
    emit_measured(form, probe.document(found), probe.tables(found), probe.csv_rows(found))
    return found.trained.accuracy


def print_zero_shot(
    run: str, classes: str | None, form: Format, common: dict[str, Any]
) -> float | None:
    """Measure and print zero-shot classification; return its accuracy, if images have labels."""
    from vitcli.cli import zero_shot
    from vitcli.runner.evaluate.zero_shot import zero_shot_run

    names = None if classes is None else classes.split(",")
    found = zero_shot_run(run, names, on_message=say, **common)
    tables = zero_shot.tables(found)
    emit_measured(form, zero_shot.document(found), tables, zero_shot.csv_rows(found))
    return found.accuracy


def refuse_other_options(option: str, given: dict[str, Any]) -> None:
    """Raise ConfigError for options that ``option`` does not take."""
    from vitcli.runner.errors import ConfigError

    for name, value in given.items():
        if value and name != option:
            raise ConfigError(f"{option} does not take {name}; leave out one of them")


def refuse_labels(labels: int | None) -> None:
    """Raise ConfigError for ``--labels`` without a probe."""
    from vitcli.runner.errors import ConfigError

    if labels is not None:
        raise ConfigError("--labels is the number of labels for a probe; add --probe linear")


def check_accuracy(run: str, accuracy: float | None, least: float) -> None:
    """Raise CheckError if the accuracy is lower than ``--min-accuracy``."""
    from vitcli.runner.errors import CheckError, ConfigError

    if accuracy is None:
        raise ConfigError(
            f"--min-accuracy: {run} is not a classifier, or no image has one of the classes;"
            " add --probe linear"
        )
    if accuracy < least:
        raise CheckError(f"{run}: accuracy {percent(accuracy)} is below --min-accuracy {least}")


def document(found: "Evaluation") -> dict[str, Any]:
    """Return the measurement as JSON values; docs/how-to/runs.md states their names."""
    about = {"run": str(found.run.path), "split": found.split, "tta": found.tta}
    size = {"num_images": found.num_images, "parameters": found.parameters}
    trained = {
        key: value
        for key, value in (found.run.read("result.json") or found.run.reached()).items()
        if key in ("epochs", "train_seconds", "images_per_second")
    }
    if (scores := found.scores) is None:
        numbers = {f"{found.split}_{name}": value for name, value in found.measured.items()}
        return about | numbers | size | trained
    return {
        **about,
        f"{found.split}_accuracy": scores.accuracy,
        "accuracy_interval_95": list(scores.accuracy_interval),
        "balanced_accuracy": scores.balanced_accuracy,
        "largest_class": found.class_names[scores.majority[0]],
        "largest_class_share": scores.majority[1],
        **further(found),
        **size,
        "class_names": list(found.class_names),
        "per_class_accuracy": list(scores.per_class),
        "per_class_precision": list(scores.precision),
        "confusion": [list(row) for row in scores.confusion],
        **trained,
    }


def measures(found: "Evaluation") -> list[tuple[str, str]]:
    """Return the main numbers as rows of text."""
    from vitcli.core.spec.metrics import METRICS

    images = f"of {found.num_images:,} {found.split} images"
    parameters = ("parameters", f"{found.parameters:,}")
    if (scores := found.scores) is None:
        value = found.headline.text(found.measured[found.headline.name])
        others = {n: v for n, v in found.measured.items() if n != found.headline.name}
        rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in others.items()]
        return [(found.headline.label, f"{value} {images}"), *rows, parameters]
    low, high = (percent(bound) for bound in scores.accuracy_interval)
    return [
        ("accuracy", f"{percent(scores.accuracy)} {images}"),
        ("95 % interval", f"{low} to {high} (sampling error of the {found.split} images only)"),
        *balance(scores, found.class_names),
        *[
            (METRICS[name].label, METRICS[name].text(n))
            for name, n in further(found).items()
            if name != "balanced_accuracy"
        ],
        parameters,
    ]


def further(found: "Evaluation") -> dict[str, float]:
    """Return what the table of metrics has of a classification beside the accuracy."""
    from vitcli.core.spec.metrics import METRICS

    names = [n for n, metric in METRICS.items() if metric.of_logits and n != "accuracy"]
    names.sort(key=lambda name: name != "top5_accuracy")
    return {name: found.measured[name] for name in names if name in found.measured}


PerClass = tuple[str, float | None, float | None, tuple[int, ...]]
"""Name, accuracy, precision, and how often each class was predicted."""


def per_class(found: "Evaluation") -> list[PerClass]:
    """Return what is known of each class; nothing without a classifier."""
    if found.scores is None:
        return []
    scores = found.scores
    numbers = found.class_names, scores.per_class, scores.precision, scores.confusion
    return list(zip(*numbers, strict=True))


def classes(found: "Evaluation") -> list[list[str]]:
    """Return one row per class: name, accuracy, precision, and counts of the predicted classes."""
    rows = []
    for name, share, precision, counts in per_class(found):
        accuracy = "no images" if share is None else percent(share, 1)
        share_right = "not predicted" if precision is None else percent(precision, 1)
        rows.append([name, accuracy, share_right, *[str(count) for count in counts]])
    return rows


def tables(found: "Evaluation", form: str) -> list[Table]:
    """Return the table of the main numbers and, for a classifier, the confusion matrix.

    As text, the matrix of more than 20 classes has only the columns ``KNOWN``.
    """
    main = make_table(["run", found.run.name], measures(found))
    if found.scores is None:
        return [main]
    head, rows = [*KNOWN, *found.class_names], classes(found)
    if form != "text":
        return [main, make_table(head, rows, range(1, len(head)))]
    if len(rows) > 20:
        return [main, make_table(KNOWN, [row[: len(KNOWN)] for row in rows], [1, 2])]
    return [main, matrix(found.class_names, rows)]


def matrix(names: Sequence[str], rows: list[list[str]]) -> Table:
    """Return the confusion matrix for this terminal.

    On a narrow one, columns have numbers instead of names, and on a narrower one, there is no
    precision.
    """
    width, size = line_width(), len(KNOWN)
    numbered = [[f"{i} {row[0]}", *row[1:]] for i, row in enumerate(rows, start=1)]
    numbers = [str(i) for i in range(1, len(rows) + 1)]
    wide = [*KNOWN, *names], rows
    short = [*KNOWN, *numbers], numbered
    least = [*KNOWN[:-1], *numbers], [row[: size - 1] + row[size:] for row in numbered]
    found = [make_table(head, cells, range(1, len(head))) for head, cells in (wide, short, least)]
    fits = (each for each in found if width is None or narrowest(each) <= width)
    return replace(next(fits, found[-1]), caption="rows: true class, columns: predicted")


def csv_rows(found: "Evaluation") -> Iterator[Sequence[Any]]:
    """Yield a header and a row per class: accuracy and confusion matrix.

    Without a classifier there is a row per number: its name as in JSON, and its value.
    """
    if found.scores is None:
        yield ["name", "value"]
        yield from ((f"{found.split}_{name}", value) for name, value in found.measured.items())
        return
    yield [*KNOWN, *found.class_names]
    for name, share, precision, counts in per_class(found):
        yield [name, share, precision, *counts]
