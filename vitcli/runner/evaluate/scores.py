"""Measurement of a trained run on a split of its data set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.metrics.classification import Scores
from vitcli.core.spec.metrics import Metric
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.trained_run import load_trained_run, score_of
from vitcli.runner.evaluate.weights import UNTRAINED
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.predictions import save_outputs
from vitcli.runner.run.record import RunRecord
from vitcli.runner.text import ignore_message, percent, quantity


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
    return Evaluation(
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
