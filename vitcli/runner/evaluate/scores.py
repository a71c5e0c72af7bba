"""Measurement of a trained run on a split of its data set."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.metrics.classification import Scores
from vitcli.core.spec.metrics import METRICS, Metric
from vitcli.runner.evaluate.trained_run import load_trained_run, score_of
from vitcli.runner.evaluate.weights import UNTRAINED
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, facts_of, hidden
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import describe_one_answer, save_outputs
from vitcli.runner.run.record import RunRecord, read_record
from vitcli.runner.text import ignore_message, percent, quantity

MOST_COLUMNS = 20


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of ``vitcli eval``."""

    run: RunDir
    measured: dict[str, float]
    headline: Metric
    scores: Scores | None
    """Intervals, accuracy per class and confusion matrix; None unless the task classifies."""
    num_images: int
    class_names: tuple[str, ...]
    parameters: int
    split: str
    tta: bool
    notes: Sequence[str] = ()

    def report(self) -> Report:
        """Return the numbers of the measurement; docs/how-to/runs.md states their names."""
        scores, size, split = self.scores, self.num_images, self.split
        name = "accuracy" if scores else self.headline.name
        own: dict[str, Any] = (
            {} if scores else {"metric": self.headline, "label": self.headline.label}
        )
        about = f"of {size:,} {split} images"
        facts = [Fact(f"{split}_{name}", self.measured[name], about=about, **own)]
        others = {other: value for other, value in self.measured.items() if other != name}
        if scores is None:
            facts += [Fact(f"{split}_{other}", value) for other, value in others.items()]
        else:
            majority, share = scores.majority
            balance = {
                "balanced_accuracy": scores.balanced_accuracy,
                "largest_class": self.class_names[majority],
                "largest_class_share": share,
            }
            facts += [interval_fact(scores.accuracy_interval, split)]
            facts += hidden(**balance) if scores.has_equal_classes else facts_of(**balance)
            shown = {n: others[n] for n in others if n in METRICS and n != "balanced_accuracy"}
            facts += facts_of(**shown)
        record = read_record(self.run)
        trained = record.result or record.reached
        kept = ("epochs", "train_seconds", "images_per_second")
        return Report(
            facts=[
                Fact("run", str(self.run.path), text=self.run.name),
                *hidden(split=split, tta=self.tta),
                *facts,
                Fact("parameters", self.parameters),
                *hidden(num_images=size, **{n: trained[n] for n in kept if n in trained}),
            ],
            tables=class_tables(scores, self.class_names) if scores else [],
            notes=self.notes,
        )


def interval_fact(interval: Sequence[float] | None, split: str) -> Fact:
    if interval is None:
        return Fact("accuracy_interval_95", None, text="")
    low, high = map(percent, interval)
    about = f"(sampling error of the {split} images only)"
    text = f"{low} to {high} {about}"
    return Fact("accuracy_interval_95", list(interval), label="95 % interval", text=text)


def class_tables(scores: Scores, names: Sequence[str]) -> list[DataTable]:
    """Return the scores of each class and the confusion matrix, which is too wide for many."""
    numbers = range(1, len(names) + 1)
    columns = zip(names, scores.counts, scores.per_class, scores.precision, strict=True)
    accuracy = Field("accuracy", metric=SHARE, none="no images")
    precision = Field("precision", metric=SHARE, none="not predicted")
    classes = [
        {"class": name, "images": images, "accuracy": share, "precision": right}
        for name, images, share, right in columns
    ]
    confusion = [
        {"number": number, "class": name, "predicted": [*counts]}
        for number, name, counts in zip(numbers, names, scores.confusion, strict=True)
    ]
    predicted = Field("predicted", spread=[*map(str, numbers)])
    return [
        DataTable("classes", ["class", "images", accuracy, precision], classes),
        DataTable(
            "confusion",
            [Field("number", "#"), "class", predicted],
            confusion,
            caption="rows: true class, columns: number of the predicted class",
            is_shown=len(names) <= MOST_COLUMNS,
        ),
    ]


def evaluate_run(
    name: str,
    *,
    split: str = "test",
    tta: bool = False,
    predictions: Path | None = None,
    on_message: Callable[[str], None] = ignore_message,
    **options: Any,
) -> Evaluation:
    """Measure a run on its own data set, in fp32; ``options`` are those of ``load_trained_run``."""
    trained = load_trained_run(name, on_message=on_message, **options)
    row, task = trained.spec.task.row, trained.task()
    outputs = task.outputs(trained.module, trained.images(split), flip=tta)
    scores = None
    if row.classifies:
        if trained.record.new_head:
            trained.notes.append(f"note: {trained.run.name}: {UNTRAINED}")
        scores = score_of(trained.run, outputs["logits"], outputs["labels"])
        majority, share = scores.majority
        if scores.accuracy <= share:
            name = trained.class_names[majority]
            trained.notes.append(describe_one_answer(scores.accuracy, name, share))
    if predictions:
        save_outputs(predictions, outputs)
    return Evaluation(
        run=trained.run,
        measured=task.measure(outputs),
        headline=row.headline,
        scores=scores,
        num_images=len(next(iter(outputs.values()))),
        class_names=tuple(trained.class_names),
        parameters=count_parameters(trained.module),
        split=split,
        tta=tta,
        notes=trained.notes,
    )


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
