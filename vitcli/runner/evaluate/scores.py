"""Measurement of a trained run on a split of its data set."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.metric import Metric, metric_of
from vitcli.core.metrics.classification import Scores, Views, logits_and_labels
from vitcli.core.metrics.confidence import MIN_WRONG
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.trained_run import TrainedRun, load_trained_run, score_of
from vitcli.runner.evaluate.weights import UNTRAINED
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, facts_of, hidden
from vitcli.runner.run.predictions import describe_one_answer, describe_undefined
from vitcli.runner.run.record import RunRecord
from vitcli.runner.text import Listener, ignore_message, join_words, percent, quantity

MOST_COLUMNS = 20
RESERVED = ("classes", "confusion", "notes", "files", "next")
"""Keys of the JSON document beside the facts."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The result of ``vitcli eval``."""

    trained: TrainedRun
    measured: dict[str, float]
    scores: Scores | None
    """Intervals, accuracy per class and confusion matrix; None unless the task classifies."""
    num_images: int
    split: str
    tta: str | None
    """A row of ``VIEWS``; None measures each image as it is."""

    @property
    def notes(self) -> list[str]:
        return self.trained.notes

    def report(self) -> Report:
        """Return the numbers of the measurement; docs/how-to/runs.md states their names."""
        trained, scores, size, split = self.trained, self.scores, self.num_images, self.split
        headline, about = trained.spec.task.row.headline, f"of {size:,} {split} images"
        is_own = scores is None or headline.name != "accuracy"
        facts, first = list[Fact](), {headline.name} if is_own else set()
        if is_own and headline.name in self.measured:
            number = self.measured[headline.name]
            texts: dict[str, Any] = {"metric": headline, "label": headline.label, "about": about}
            facts.append(Fact(f"{split}_{headline.name}", number, **texts))
        if scores is not None:
            first.add("accuracy")
            accuracy = self.measured.get("accuracy", scores.accuracy)
            facts.append(Fact(f"{split}_accuracy", accuracy, about=about))
        measures = list[Metric]()
        others = {other: value for other, value in self.measured.items() if other not in first}
        if scores is None:
            facts += [Fact(f"{split}_{other}", value) for other, value in others.items()]
        else:
            majority, share = scores.majority
            balance = {
                "balanced_accuracy": scores.balanced_accuracy,
                "largest_class": trained.class_names[majority],
                "largest_class_share": share,
            }
            facts += [interval_fact(scores.accuracy_interval, split)]
            facts += hidden(**balance) if scores.has_equal_classes else facts_of(**balance)
            rows = (metric_of(name) for name in others if name != "balanced_accuracy")
            measures = [row for row in rows if row]
        result = trained.record.result or trained.record.reached
        kept = ("epochs", "train_seconds", "images_per_second")
        before = [
            Fact("run", str(trained.run.path), text=trained.run.name),
            *hidden(split=split, tta=self.tta),
        ]
        after = [
            Fact("parameters", count_parameters(trained.module)),
            *hidden(num_images=size, **{n: result[n] for n in kept if n in result}),
        ]
        tables = class_tables(scores, trained.class_names) if scores else []
        taken = {fact.name for fact in (*before, *facts, *after)} | {*RESERVED}
        for metric in measures:
            key = f"{split}_{metric.name}" if metric.name in taken else metric.name
            label = metric.label
            facts.append(Fact(key, others[metric.name], metric=metric, label=label))
        return Report(facts=[*before, *facts, *after], tables=tables, notes=self.notes)


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
    tta: str | None = None,
    on_message: Listener = ignore_message,
    **options: Any,
) -> Evaluation:
    """Measure a run on its own data set, in fp32; ``options`` are those of ``load_trained_run``."""
    trained = load_trained_run(name, on_message=on_message, **options)
    row, task = trained.spec.task.row, trained.task()
    images = trained.images(split)
    outputs = task.outputs(trained.module, images)
    if tta:
        if not row.classifies:
            raise ConfigError(f"--tta: task {trained.spec.task.name} of {name} has no classes")
        views = Views(trained.model, tta)
        outputs["logits"] = logits_and_labels(views, images, trained.spec)[0]
    scores = score_of(trained.run, outputs["logits"], outputs["labels"]) if row.classifies else None
    measured = task.measure(outputs)
    if task.caveat:
        trained.notes.append(f"note: {task.caveat}")
    if trained.record.new_head:
        trained.notes.append(f"note: {trained.run.name}: {UNTRAINED}")
    if scores:
        trained.notes.extend(describe_undefined(measured))
        if missing := _not_measured(trained.record, measured):
            trained.notes.append(
                f"note: not measured: {join_words(missing)}; an own metric needs its code: --code"
                " FILE, or --trust-code"
            )
        groups = trained.data.groups
        if (num := len({groups.get(name, name) for name in images.names})) < len(images.names):
            trained.notes.append(
                f"note: the 95 % interval treats {quantity(len(images), 'image')} as independent;"
                f" they are of {quantity(num, 'group')} (data.group), so it is too narrow"
            )
        majority, share = scores.majority
        if scores.accuracy <= share:
            name = trained.class_names[majority]
            trained.notes.append(describe_one_answer(scores.accuracy, name, share))
    count = len(next(iter(outputs.values())))
    return Evaluation(
        trained=trained, measured=measured, scores=scores, num_images=count, split=split, tta=tta
    )


def _not_measured(record: RunRecord, measured: Collection[str]) -> list[str]:
    """Return the numbers of a training with own code that this measurement lacks."""
    tested = [name for name in record.result if name.startswith("test_") and not metric_of(name)]
    names = [name.removeprefix("test_") for name in tested if record.setting("code")]
    return [name for name in names if name not in measured]


def why_uncalibrated(record: RunRecord) -> str | None:
    if record.temperature is not None:
        return None
    if not any(name.startswith("set_threshold") for name in record.result):
        return "a training with validation images (data.val_split) fits a temperature"
    if few := _few_wrong(record):
        return f"{few} are too few for a temperature"
    return "the validation images gave no temperature"


def why_doubtful(record: RunRecord) -> str | None:
    """Return why the temperature of a run makes it too sure; trainings of today fit none then."""
    if (record.temperature or 1) < 1 and (few := _few_wrong(record)):
        return (
            f"the temperature {record.temperature:.2f} makes the probabilities too sure: {few} are"
            " too few for one below 1; train again for probabilities without it"
        )
    return None


def _few_wrong(record: RunRecord) -> str | None:
    """Return the validation images and how many were wrong, if these are too few; else None."""
    accuracy, count = record.number("val_accuracy"), record.num_val or 0
    if accuracy is None or (num_wrong := round(count * (1 - accuracy))) >= MIN_WRONG:
        return None
    return f"{quantity(count, 'validation image')} with {quantity(num_wrong, 'wrong answer')}"


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
