"""Probes of a run's frozen encoder: the accuracy of a classifier on its features.

Axes: N images, F features, K classes.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn

from vitcli.core.data.batches import limit_images
from vitcli.core.data.source import Images
from vitcli.core.metric import ACCURACY
from vitcli.core.metrics.classification import score
from vitcli.core.metrics.knn import knn_logits
from vitcli.core.metrics.linear_probe import HELD_OUT, apply, linear_probe
from vitcli.runner.data.arrays import keep_labels
from vitcli.runner.data.extras import column_of
from vitcli.runner.data.folds import folds_of_probes
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.scores import interval_fact
from vitcli.runner.evaluate.trained_run import OnStage, TrainedRun, load_trained_run
from vitcli.runner.experiment.build import new_module
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.text import quantity


def probe_run(
    name: str,
    kind: str,
    *,
    labels: int | None = None,
    split: str = "test",
    on_stage: OnStage = lambda name, done, total: None,
    **options: Any,
) -> tuple[Report, float]:
    """Fit a probe to the features of the training images, and measure it on a split, in fp32.

    Returns the report, and the accuracy. The encoder with the initial weights of the run's seed is
    probed, too, for comparison. ``labels`` is the number of training images to learn from, balanced
    by class and chosen by content.
    """
    if split == "train":
        raise ConfigError("--probe learns from the training images; take --split test or val")
    run = load_trained_run(name, **options)
    if column := column_of(run.data.train.extra):
        raise ConfigError(
            f"--probe learns classes, and {run.spec.data.name} has {column.column!r} instead; type:"
            f" {run.run.command('eval')}"
        )
    known = run.images("train")
    if labels is not None:
        known = keep_labels(run.data.train, labels, "--labels")[0].to(run.device)
    images = limit_images(known, run.spec), limit_images(run.images(split), run.spec)
    fold, apart = None, ""
    if kind != "knn":
        fold, apart = folds_of_probes(images[0], run.data, HELD_OUT)
    notes = run.notes + (
        [f"note: copies are in one fold{apart}; the L2 strength may be too low"] if apart else []
    )
    held_out = None if fold is None else fold == HELD_OUT - 1
    initial = new_module(run.spec).to(run.device).eval()
    trained, width, how = _score(
        run, run.module, "trained encoder", kind, images, held_out, on_stage
    )
    untrained, *_ = _score(run, initial, "initial weights", kind, images, held_out, on_stage)
    label = f"{'k-NN' if kind == 'knn' else kind} probe"
    about = f"of {len(images[1]):,} {split} images"
    facts = [
        Fact("run", str(run.run.path), text=run.run.name),
        *hidden(probe=kind, split=split, num_images=len(images[1])),
        Fact("accuracy", trained["accuracy"], label=label, about=about),
        interval_fact((trained["low"], trained["high"]), split),
        Fact("num_labels", len(images[0]), about="training images"),
        Fact("num_features", width, about="of the frozen encoder"),
    ]
    if how:
        strength = trained["l2_strength"]
        facts.append(Fact("l2_strength", strength, label="L2 strength", about=f"({how})"))
    rows = [{"encoder": "trained"} | trained, {"encoder": "random-init"} | untrained]
    shares = [Field(name, metric=ACCURACY) for name in ("accuracy", "low", "high")]
    table = DataTable("encoders", ["encoder", *shares, "l2_strength"], rows)
    return Report(facts=facts, tables=[table], notes=notes), trained["accuracy"]


def _score(
    run: TrainedRun,
    module: nn.Module,
    encoder: str,
    kind: str,
    images: tuple[Images, Images],
    held_out: Tensor | None,
    on_stage: OnStage,
) -> tuple[dict[str, Any], int, str]:
    """Return a probe's score on one encoder, the number of features, and how its L2 was chosen."""
    task, (train, test) = run.task(module), images
    total = len(train) + len(test)
    stage = f"{encoder}: features of {quantity(total, 'image')}"
    on_stage(stage, 0, total)
    known = task.features(module, train, lambda done: on_stage(stage, done, total))
    asked = task.features(module, test, lambda done: on_stage(stage, len(train) + done, total))
    if not (known.isfinite().all() and asked.isfinite().all()):
        raise InputError(f"{run.run.name}: a feature of the encoder is infinite or NaN")
    stage_of_probe = f"{encoder}: {kind} probe"
    on_stage(stage_of_probe, 0, 1)
    count, strength, how = run.data.num_classes, None, ""
    if kind == "knn":
        logits = knn_logits(known, train.labels, asked, count)
    else:
        on_fit = partial(on_stage, stage_of_probe)
        probe = linear_probe(known, train.labels, count, held_out=held_out, on_fit=on_fit)
        logits, strength = apply(probe.layer, asked), probe.strength
        how = "chosen on held-out training images"
        how = how if probe.is_chosen else "too few labels to choose one"
    scores = score(logits, test.labels)
    low, high = scores.accuracy_interval
    found = {"accuracy": scores.accuracy, "l2_strength": strength, "low": low, "high": high}
    return found, known.shape[1], how
