"""`vitcli eval`: the measurement of a trained run."""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vitcli.cli.console import emit_measured, line_width, say
from vitcli.cli.options import DataDir, Device, Json, LimitBatches, Offline, Run, exclude
from vitcli.runner.tables import Table, make_table, narrowest
from vitcli.runner.text import percent, quantity

if TYPE_CHECKING:
    from vitcli.core.metrics.classification import Scores
    from vitcli.runner.evaluate.probe import Probe
    from vitcli.runner.evaluate.review import Doubt, Review
    from vitcli.runner.evaluate.scores import Evaluation
    from vitcli.runner.evaluate.zero_shot import ZeroShot

KNOWN = ("class", "accuracy", "precision")
"""The first columns of the table of classes. The accuracy of a class is its recall."""
PROBES = {"linear": "linear probe", "knn": "k-NN probe"}
ASSIGNED = ("class", "images", "accuracy", "assigned")
DOUBT = ("name", "given", "given_probability", "predicted", "predicted_probability")

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
        int | None,
        typer.Option(help="Step of the checkpoint.", show_default="last", hidden=True),
    ] = None,
    form: Annotated[
        Literal["text", "md", "csv", "json"],
        typer.Option("--format", help="Format of the output."),
    ] = "text",
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
    from vitcli.runner.errors import CheckError, ConfigError

    form = "json" if json else form
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
        accuracy = print_review(run, form, common)
    elif zero_shot:
        accuracy = print_zero_shot(run, classes, form, common)
    elif probe is not None:
        accuracy = print_probe(run, probe, labels, form, common)
    else:
        accuracy = print_evaluation(run, tta, predictions, form, common)
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


def interval_row(interval: Sequence[float], split: str) -> tuple[str, str]:
    low, high = map(percent, interval)
    return "95 % interval", f"{low} to {high} (sampling error of the {split} images only)"


def print_evaluation(
    run: str, tta: bool, predictions: Path | None, form: str, common: dict[str, Any]
) -> float | None:
    """Measure and print what the task measures; return the accuracy if it classifies."""
    from vitcli.runner.evaluate.scores import evaluate_run

    evaluation = evaluate_run(run, tta=tta, predictions=predictions, on_message=say, **common)
    main = make_table(["run", evaluation.run.name], measures(evaluation))
    rows = csv_rows(evaluation)
    scores, names = evaluation.scores, evaluation.class_names
    if scores is None:
        emit_measured(form, document(evaluation), [main], rows)
        return None
    emit_measured(form, document(evaluation), [main, class_table(rows[1:], names, form)], rows)
    warn_if_no_better(scores, names)
    return scores.accuracy


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


def document(evaluation: "Evaluation") -> dict[str, Any]:
    """Return the measurement as JSON values; docs/how-to/runs.md states their names."""
    from vitcli.runner.run.record import read_record

    run, split = evaluation.run, evaluation.split
    record = read_record(run)
    about = {"run": str(run.path), "split": split, "tta": evaluation.tta}
    size = {"num_images": evaluation.num_images, "parameters": evaluation.parameters}
    trained = {
        key: value
        for key, value in (record.result or record.reached).items()
        if key in ("epochs", "train_seconds", "images_per_second")
    }
    if (scores := evaluation.scores) is None:
        numbers = {f"{split}_{name}": value for name, value in evaluation.measured.items()}
        return about | numbers | size | trained
    return {
        **about,
        f"{split}_accuracy": scores.accuracy,
        "accuracy_interval_95": list(scores.accuracy_interval),
        "balanced_accuracy": scores.balanced_accuracy,
        "largest_class": evaluation.class_names[scores.majority[0]],
        "largest_class_share": scores.majority[1],
        **further(evaluation),
        **size,
        "class_names": list(evaluation.class_names),
        "per_class_accuracy": list(scores.per_class),
        "per_class_precision": list(scores.precision),
        "confusion": [list(row) for row in scores.confusion],
        **trained,
    }


def measures(evaluation: "Evaluation") -> list[tuple[str, str]]:
    """Return the main numbers as rows of text."""
    from vitcli.core.spec.metrics import METRICS

    headline, measured = evaluation.headline, evaluation.measured
    images = f"of {evaluation.num_images:,} {evaluation.split} images"
    parameters = ("parameters", f"{evaluation.parameters:,}")
    if (scores := evaluation.scores) is None:
        first = (headline.label, f"{headline.text(measured[headline.name])} {images}")
        others = [(name, value) for name, value in measured.items() if name != headline.name]
        rows = [(name.replace("_", " "), f"{value:.4f}") for name, value in others]
        return [first, *rows, parameters]
    return [
        ("accuracy", f"{percent(scores.accuracy)} {images}"),
        interval_row(scores.accuracy_interval, evaluation.split),
        *balance(scores, evaluation.class_names),
        *[
            (METRICS[name].label, METRICS[name].text(value))
            for name, value in further(evaluation).items()
            if name != "balanced_accuracy"
        ],
        parameters,
    ]


def further(evaluation: "Evaluation") -> dict[str, float]:
    """Return what the table of metrics has of a classification beside the accuracy."""
    from vitcli.core.spec.metrics import METRICS

    names = [n for n, metric in METRICS.items() if metric.of_logits and n != "accuracy"]
    names.sort(key=lambda name: name != "top5_accuracy")
    return {name: evaluation.measured[name] for name in names if name in evaluation.measured}


def csv_rows(evaluation: "Evaluation") -> list[Sequence[Any]]:
    """Return a header and a row per class: accuracy, precision and the counts of the predictions.

    Without a classifier there is a row per number: its name as in JSON, and its value.
    """
    if (scores := evaluation.scores) is None:
        numbers = evaluation.measured.items()
        return [["name", "value"], *[(f"{evaluation.split}_{name}", n) for name, n in numbers]]
    names = evaluation.class_names
    columns = zip(names, scores.per_class, scores.precision, scores.confusion, strict=True)
    return [[*KNOWN, *names], *[[*cells, *counts] for *cells, counts in columns]]


def class_table(rows: Sequence[Sequence[Any]], names: Sequence[str], form: str) -> Table:
    """Return the table of classes with the confusion matrix.

    As text, more than 20 classes have only the columns ``KNOWN``.
    """
    cells = [
        [
            name,
            "no images" if share is None else percent(share, 1),
            "not predicted" if precision is None else percent(precision, 1),
            *map(str, counts),
        ]
        for name, share, precision, *counts in rows
    ]
    if form == "text" and len(cells) <= 20:
        return matrix(names, cells)
    head = [*KNOWN, *names] if form != "text" else KNOWN
    return make_table(head, [row[: len(head)] for row in cells], range(1, len(head)))


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
    tables = [make_table(head, cells, range(1, len(head))) for head, cells in (wide, short, least)]
    fits = (table for table in tables if width is None or narrowest(table) <= width)
    return replace(next(fits, tables[-1]), caption="rows: true class, columns: predicted")


def print_probe(
    run: str, kind: str, labels: int | None, form: str, common: dict[str, Any]
) -> float:
    from vitcli.cli.live import stages
    from vitcli.runner.evaluate.probe import probe_run

    with stages() as on_stage:
        probe = probe_run(run, kind, labels=labels, on_message=say, on_stage=on_stage, **common)
    numbers = []
    rows: list[list[Any]] = [["encoder", "accuracy", "low", "high", "labels", "images"]]
    for name, score in (("trained", probe.trained), ("random-init", probe.untrained)):
        strength = {} if score.strength is None else {"l2_strength": score.strength}
        interval = {"accuracy_interval_95": list(score.interval)}
        numbers.append({"accuracy": score.accuracy, **interval, **strength})
        rows.append([name, score.accuracy, *score.interval, probe.num_labels, probe.num_images])
    document = {
        "run": str(probe.run.path),
        "probe": probe.kind,
        "split": probe.split,
        **numbers[0],
        "random_init": numbers[1],
        "num_labels": probe.num_labels,
        "num_images": probe.num_images,
        "num_features": probe.num_features,
    }
    table = make_table(["run", probe.run.name], probe_measures(probe))
    emit_measured(form, document, [table], rows)
    return probe.trained.accuracy


def probe_measures(probe: "Probe") -> list[tuple[str, str]]:
    accuracy, untrained = percent(probe.trained.accuracy), percent(probe.untrained.accuracy)
    first, last = map(percent, probe.untrained.interval)
    rows = [
        (PROBES[probe.kind], f"{accuracy} of {probe.num_images:,} {probe.split} images"),
        interval_row(probe.trained.interval, probe.split),
        ("random-init encoder", f"{untrained} ({first} to {last}), the same probe"),
        ("labels", f"{probe.num_labels:,} training images"),
        ("features", f"{probe.num_features:,} of the frozen encoder"),
    ]
    if (strength := probe.trained.strength) is not None:
        how = "chosen on held-out training images"
        why = how if probe.trained.is_chosen else "too few labels to choose one"
        rows.append(("L2 strength", f"{strength:g} ({why})"))
    return rows


def print_zero_shot(run: str, names: str | None, form: str, common: dict[str, Any]) -> float | None:
    """Measure and print zero-shot classification; return its accuracy, if images have labels."""
    from vitcli.runner.evaluate.zero_shot import zero_shot_run

    classes = None if names is None else names.split(",")
    result = zero_shot_run(run, classes, on_message=say, **common)
    document = {
        "run": str(result.run.path),
        "split": result.split,
        "zero_shot_accuracy": result.accuracy,
        "accuracy_interval_95": result.interval and list(result.interval),
        "num_images": result.num_images,
        "num_labelled": result.num_labelled,
        "classes": [asdict(row) for row in result.classes],
    }
    cells = [
        [
            row.name,
            "-" if row.num_images is None else f"{row.num_images:,}",
            "-" if row.accuracy is None else percent(row.accuracy, 1),
            f"{row.num_assigned:,}",
        ]
        for row in result.classes
    ]
    main = make_table(["run", result.run.name], zero_shot_measures(result))
    rows = [(row.name, row.num_images, row.accuracy, row.num_assigned) for row in result.classes]
    tables = [main, make_table(ASSIGNED, cells, numeric=[1, 2, 3])]
    emit_measured(form, document, tables, [ASSIGNED, *rows])
    return result.accuracy


def zero_shot_measures(result: "ZeroShot") -> list[tuple[str, str]]:
    images = f"{result.num_images:,} {result.split} images"
    if result.accuracy is None or result.interval is None:
        return [("zero-shot accuracy", f"none: the data set has no class of these; {images}")]
    rows = [
        ("zero-shot accuracy", f"{percent(result.accuracy)} of {result.num_labelled:,} images"),
        interval_row(result.interval, result.split),
    ]
    if others := result.num_images - result.num_labelled:
        rows.append(("other classes", f"{others:,} of {images}, not in the accuracy"))
    return rows


def print_review(run: str, form: str, common: dict[str, Any]) -> float:
    """Write the page of a review and print what is on it; return the accuracy."""
    from vitcli.cli.live import stages
    from vitcli.runner.data.listing import own_path, split_of
    from vitcli.runner.errors import ConfigError
    from vitcli.runner.evaluate.review import review_run
    from vitcli.runner.visualize.review_page import write_review

    if common["split"] != "test":
        raise ConfigError("--review shows the test and the training images; leave out --split")
    options = {name: value for name, value in common.items() if name != "split"}
    with stages() as on_stage:
        review = review_run(run, on_message=say, on_stage=on_stage, **options)
    page = write_review(review, common["data_dir"])
    copies = [doubt for pair in review.copies for doubt in pair]
    lists = {"errors": review.errors, "suspects": review.suspects, "copies": copies}
    rows = [[name, *_fields(doubt).values()] for name, doubts in lists.items() for doubt in doubts]
    table = make_table(["run", review.found.run.name], [*review_rows(review), ("page", str(page))])
    emit_measured(form, review_document(review, page), [table], [["list", *DOUBT], *rows])
    say(f"next: open {page} in a browser")
    name = review.found.spec.data.name
    if name.startswith("imagefolder:") and (root := own_path(name, common["data_dir"])):
        splits = [path for path in sorted(root.iterdir()) if split_of(path.name) == "test"]
        pictures = shlex.quote(str(next((path for path in splits if path.is_dir()), root)))
        say(f"next: {review.found.run.command('predict')} {pictures} --reject 0.8 --format csv")
    return review.accuracy


def review_document(review: "Review", page: Path) -> dict[str, Any]:
    return {
        "run": str(review.found.run.path),
        "page": str(page),
        "num_test": review.num_test,
        "num_errors": review.num_errors,
        "temperature": review.temperature,
        "errors": [_fields(doubt) for doubt in review.errors],
        "num_checked": review.num_checked,
        "num_suspects": review.num_suspects,
        "suspects": [_fields(doubt) for doubt in review.suspects],
        "num_copies": review.num_copies,
        "copies": [[_fields(doubt) for doubt in pair] for pair in review.copies],
        "notes": review.notes,
    }


def _fields(doubt: "Doubt") -> dict[str, Any]:
    return {field: getattr(doubt, field) for field in DOUBT}


def review_rows(review: "Review") -> list[tuple[str, str]]:
    copies = "not compared" if review.num_copies is None else quantity(review.num_copies, "pair")
    suspects = "not checked"
    if review.num_checked:
        total = quantity(review.num_checked, "training image")
        suspects = f"{review.num_suspects:,} of {total}, by probes that have not seen them"
    return [
        ("errors", f"{review.num_errors:,} of {quantity(review.num_test, 'test image')}"),
        ("suspect labels", suspects),
        ("copies with two labels", copies),
        *[("note", note) for note in review.notes],
    ]
