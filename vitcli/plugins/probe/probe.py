"""Probes of a run's frozen encoder: the accuracy of a classifier on its features.

Axes: N images, F features, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from vitcli.core.data.batches import limit_images
from vitcli.core.data.source import Images
from vitcli.core.metric import ACCURACY
from vitcli.core.metrics.classification import score
from vitcli.core.metrics.knn import knn_logits
from vitcli.core.metrics.linear_probe import apply, linear_probe
from vitcli.runner.data.arrays import keep_labels
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.scores import interval_fact
from vitcli.runner.evaluate.trained_run import TrainedRun, load_trained_run
from vitcli.runner.experiment.build import new_module
from vitcli.runner.report.report import DataTable, Fact, Field, Report, hidden
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import quantity


@dataclass(frozen=True)
class ProbeScore:
    accuracy: float
    interval: tuple[float, float]
    """95 % Wilson interval: the sampling error of the measured images alone."""
    strength: float | None
    is_chosen: bool
    """Whether held-out training images chose the strength."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The result of ``vitcli eval --probe``."""

    run: RunDir
    kind: str
    split: str
    trained: ProbeScore
    untrained: ProbeScore
    """The same probe on the same encoder with its initial weights."""
    num_labels: int
    num_images: int
    num_features: int
    notes: Sequence[str] = ()

    def report(self) -> Report:
        kind = "k-NN" if self.kind == "knn" else self.kind
        images = f"of {self.num_images:,} {self.split} images"
        facts = [
            Fact("run", str(self.run.path), text=self.run.name),
            *hidden(probe=self.kind, split=self.split, num_images=self.num_images),
            Fact("accuracy", self.trained.accuracy, label=f"{kind} probe", about=images),
            interval_fact(self.trained.interval, self.split),
            Fact("num_labels", self.num_labels, about="training images"),
            Fact("num_features", self.num_features, about="of the frozen encoder"),
        ]
        strength = self.trained.strength
        if strength is not None:
            how = "too few labels to choose one"
            if self.trained.is_chosen:
                how = "chosen on held-out training images"
            facts.append(Fact("l2_strength", strength, label="L2 strength", about=f"({how})"))
        rows = [
            {"encoder": name, "accuracy": score.accuracy, "l2_strength": score.strength}
            | {"low": score.interval[0], "high": score.interval[1]}
            for name, score in (("trained", self.trained), ("random-init", self.untrained))
        ]
        shares = [Field(name, metric=ACCURACY) for name in ("accuracy", "low", "high")]
        table = DataTable("encoders", ["encoder", *shares, "l2_strength"], rows)
        return Report(facts=facts, tables=[table], notes=self.notes)


OnStage = Callable[[str, int, int], None]
"""Gets the name of a stage, how many of its parts are done, and how many there are at most."""


def probe_run(
    name: str,
    kind: str,
    *,
    labels: int | None = None,
    split: str = "test",
    on_stage: OnStage = lambda name, done, total: None,
    **options: Any,
) -> Probe:
    """Fit a probe to the features of the training images, and measure it on a split, in fp32.

    The encoder with the initial weights of the run's seed is probed, too, for comparison.
    ``labels`` is the number of training images to learn from, balanced by class and chosen by
    content as ``data.labels`` chooses them. ``options`` are those of ``load_trained_run``.
    """
    if split == "train":
        raise ConfigError("--probe learns from the training images; take --split test or val")
    run = load_trained_run(name, **options)
    known = run.images("train")
    if labels is not None:
        known = keep_labels(run.data.train, labels, "--labels")[0].to(run.device)
    images = limit_images(known, run.spec), limit_images(run.images(split), run.spec)
    initial = new_module(run.spec).to(run.device).eval()
    trained, width = _score(run, run.module, "trained encoder", kind, images, on_stage)
    untrained, _ = _score(run, initial, "initial weights", kind, images, on_stage)
    return Probe(
        run=run.run,
        kind=kind,
        split=split,
        trained=trained,
        untrained=untrained,
        num_labels=len(images[0]),
        num_images=len(images[1]),
        num_features=width,
        notes=run.notes,
    )


def _score(
    run: TrainedRun,
    module: nn.Module,
    encoder: str,
    kind: str,
    images: tuple[Images, Images],
    on_stage: OnStage,
) -> tuple[ProbeScore, int]:
    """Return the score of a probe on one encoder, and the number of its features."""
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
    count, strength, is_chosen = run.data.num_classes, None, False
    if kind == "knn":
        logits = knn_logits(known, train.labels, asked, count)
    else:
        probe = linear_probe(known, train.labels, count, on_fit=partial(on_stage, stage_of_probe))
        logits, strength, is_chosen = apply(probe.layer, asked), probe.strength, probe.is_chosen
    scores = score(logits, test.labels)
    result = ProbeScore(scores.accuracy, scores.accuracy_interval, strength, is_chosen)
    return result, known.shape[1]
