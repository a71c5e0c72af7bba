"""Measurement of a trained run on a split of its data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.metrics.classification import Scores
from vitcli.core.spec.metrics import METRICS, Metric
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import load_trained_run, score_of
from vitcli.runner.evaluate.weights import UNTRAINED
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import save_outputs
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.text import ignore_message, percent, quantity

MOST_COLUMNS = 20
"""Largest number of classes of which people read the confusion matrix."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of ``vitcli eval``."""

    run: RunDir
    measured: dict[str, float]
    """Every number that the task measures, by name."""
    headline: Metric
    scores: Scores | None
    """Intervals, accuracy per class and confusion matrix; None unless the task classifies."""
    num_images: int
    class_names: tuple[str, ...]
    parameters: int
    split: str
    tta: bool

    def report(self) -> Report:
        """Return the numbers of the measurement; docs/how-to/runs.md states their names."""
        scores, size, split = self.scores, self.num_images, self.split
        name = "accuracy" if scores else self.headline.name
        numbers = {name: self.measured[name]} | self.measured
        about = {name: f"of {size:,} {split} images"}
        if scores is None:
            facts = [
                Fact(name=f"{split}_{name}", value=value, about=about.get(name, ""))
                for name, value in numbers.items()
            ]
        else:
            numbers = {name: value for name, value in numbers.items() if name in METRICS}
            accuracy = Fact(name=f"{split}_accuracy", value=scores.accuracy, about=about[name])
            others = [
                Fact(name=name, value=value)
                for name, value in numbers.items()
                if name not in ("accuracy", "balanced_accuracy")
            ]
            interval = interval_fact(scores.accuracy_interval, split)
            facts = [accuracy, interval, *balance_facts(scores, self.class_names), *others]
        record = read_record(self.run)
        trained = record.result or record.reached
        return Report(
            facts=[
                Fact(name="run", value=str(self.run.path), text=self.run.name),
                Fact(name="split", value=split, text=""),
                Fact(name="tta", value=self.tta, text=""),
                *facts,
                Fact(name="num_images", value=size, text=""),
                Fact(name="parameters", value=self.parameters),
                *(
                    Fact(name=name, value=trained[name], text="")
                    for name in ("epochs", "train_seconds", "images_per_second")
                    if name in trained
                ),
            ],
            tables=class_tables(scores, self.class_names) if scores else [],
        )


def interval_fact(interval: Sequence[float] | None, split: str) -> Fact:
    low, high = map(percent, interval or (0, 0))
    return Fact(
        name="accuracy_interval_95",
        value=interval and list(interval),
        label="95 % interval",
        text=interval and f"{low} to {high}",
        about=f"(sampling error of the {split} images only)" if interval else "",
    )


def balance_facts(scores: Scores, names: Sequence[str]) -> list[Fact]:
    """Return facts about classes; people read them if the classes are not equally large."""
    hidden = "" if scores.has_equal_classes else None
    majority, share = scores.majority
    balanced = Fact(name="balanced_accuracy", value=scores.balanced_accuracy, text=hidden)
    return [
        replace(balanced, about="" if scores.has_equal_classes else "(mean of the classes)"),
        Fact(name="largest_class", value=names[majority], text=hidden),
        Fact(name="largest_class_share", value=share, metric=METRICS["accuracy"], text=hidden),
    ]


def warn_if_no_better(
    scores: Scores, names: Sequence[str], on_message: Callable[[str], None]
) -> None:
    """Warn if always answering the most frequent class would be as accurate as the model."""
    majority, share = scores.majority
    if scores.accuracy <= share:
        on_message(
            f"warning: accuracy {percent(scores.accuracy)} is no better than always answering"
            f" {names[majority]}, which would be right for {percent(share)}"
        )


def class_tables(scores: Scores, names: Sequence[str]) -> list[DataTable]:
    """Return the scores of each class and the confusion matrix, which is too wide for many."""
    columns = zip(names, scores.counts, scores.per_class, scores.precision, strict=True)
    keys = ("class", "images", "accuracy", "precision")
    classes = DataTable(
        name="classes",
        fields=[
            *(Field(name="class"), Field(name="images")),
            Field(name="accuracy", metric=SHARE, none="no images"),
            Field(name="precision", metric=SHARE, none="not predicted"),
        ],
        rows=[dict(zip(keys, row, strict=True)) for row in columns],
    )
    numbers = range(1, len(names) + 1)
    confusion = DataTable(
        name="confusion",
        caption="rows: true class, columns: number of the predicted class",
        fields=[
            *(Field(name="number", header="#"), Field(name="class")),
            Field(name="predicted", spread=[*map(str, numbers)]),
        ],
        rows=[
            {"number": number, "class": name, "predicted": [*counts]}
            for number, name, counts in zip(numbers, names, scores.confusion, strict=True)
        ],
        is_shown=len(names) <= MOST_COLUMNS,
    )
    return [classes, confusion]


def evaluate_run(
    name: str,
    *,
    split: str = "test",
    tta: bool = False,
    step: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    offline: bool = False,
    limit_batches: int | None = None,
    predictions: Path | None = None,
    on_message: Callable[[str], None] = ignore_message,
) -> Evaluation:
    """Measure a run on its own data set, in fp32.

    Args:
        step: The step of the checkpoint; by default the last.
        data_dir: The only folder in which the data set is searched.
        limit_batches: The number of batches of 500 images to measure; by default all.
    """
    found = load_trained_run(
        name,
        step=step,
        device=device,
        data_dir=data_dir,
        offline=offline,
        limit_batches=limit_batches,
        on_message=on_message,
    )
    spec, row, task = found.spec, found.spec.task.row, found.task()
    outputs = task.outputs(found.module, found.images(split), flip=tta)
    scores = None
    if row.classifies:
        if found.record.new_head:
            on_message(f"note: {found.run.name}: {UNTRAINED}")
        scores = score_of(found.run, outputs["logits"], outputs["labels"])
    if predictions:
        save_outputs(predictions, outputs)
    evaluation = Evaluation(
        run=found.run,
        measured=task.measure(outputs),
        headline=row.headline,
        scores=scores,
        num_images=len(next(iter(outputs.values()))),
        class_names=spec.data.class_names or found.data.class_names,
        parameters=count_parameters(found.module),
        split=split,
        tta=tta,
    )
    if scores is not None:
        warn_if_no_better(scores, evaluation.class_names, on_message)
    return evaluation


def stored_scores(record: RunRecord) -> Scores | None:
    """Return the scores of the stored outputs for the test images; None without a classifier."""
    if not record.task.classifies:
        return None
    try:
        logits, labels = record.predictions
    except InputError:  # nothing was measured, or the file is damaged
        return None
    return score_of(record.folder, torch.from_numpy(logits), torch.from_numpy(labels))


def why_uncalibrated(record: RunRecord) -> str | None:
    """Return why a training ended without a temperature; None for a run with one."""
    if record.temperature is not None:
        return None
    if not any(name.startswith("set_threshold") for name in record.result):
        return "a training with validation images (data.val_split) fits a temperature"
    if record.number("val_accuracy") == 1:
        return "all validation images were right, which gives no temperature"
    return "the validation images gave no temperature: the logits say too little of the classes"


def describe_temperature(record: RunRecord) -> str:
    """Return the temperature with what it rests on and changes, or why there is none."""
    if reason := why_uncalibrated(record):
        return f"none: {reason}"
    result, count = record.result, quantity(record.num_val or 0, "image")
    text = f"{record.temperature:.2f} from {count}, used by predict"
    if (better := result.get("calibrated_calibration_error")) is None:
        return text
    change = f"{percent(result['calibration_error'])}, with it {percent(better)}"
    return f"{text}; calibration error of {quantity(result['num_test'], 'test image')} {change}"
