"""Zero-shot classification with a run that was trained with captions.

Axes: N images, K named classes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitcli.core.data.batches import limit_images
from vitcli.core.objectives.objective import Task, task_class
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.scores import interval_fact
from vitcli.runner.evaluate.trained_run import TrainedRun, load_trained_run, score_of
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, hidden
from vitcli.runner.run.folder import find_run
from vitcli.runner.text import printable


def zero_shot_report(
    name: str, class_names: Sequence[str] | None = None, *, split: str = "test", **options: Any
) -> tuple[Report, float | None]:
    """Report on classes given by name; the accuracy is None if no image has such a class."""
    run = find_run(name)
    task_name = run.spec().task.name
    if task_class(run.spec()).zero_shot is Task.zero_shot:
        raise ConfigError(
            f"--zero-shot: {run.name} was trained with task {task_name!r}, which has no text;"
            " take a run that was trained with captions"
        )
    trained = load_trained_run(name, **options)
    images, known = trained.images(split), trained.data.class_names
    names = check_names(class_names or known)
    task = trained.task()
    try:
        logits, unknown = task.zero_shot(trained.module, images, names)
    except ValueError as error:
        raise ConfigError(f"--classes: {error}") from error
    if unknown:
        words = ", ".join(printable(word) for word in unknown)
        trained.notes.append(f"unknown words, because no caption of the training has them: {words}")
    places = {_plain(name): i for i, name in enumerate(names)}
    place_of = torch.tensor([places.get(_plain(name), -1) for name in known])
    labels = place_of[limit_images(images, trained.spec).labels.cpu()]
    return _report(trained, split, names, logits.cpu(), labels)


def check_names(names: Sequence[str]) -> list[str]:
    stripped = [name.strip() for name in names]
    if "" in stripped or len(stripped) < 2:
        raise ConfigError('--classes takes at least two names, such as --classes "cat,dog"')
    twice = next((name for i, name in enumerate(stripped) if name in stripped[:i]), None)
    if twice is not None:
        raise ConfigError(f"--classes names {printable(twice)!r} twice")
    return stripped


def _plain(name: str) -> str:
    return name.casefold().replace("_", " ")


def _report(
    trained: TrainedRun, split: str, names: Sequence[str], logits: Tensor, labels: Tensor
) -> tuple[Report, float | None]:
    """Report on logits (N, K), and labels (N,) that are -1 for unnamed classes."""
    run = trained.run
    named, predicted = labels >= 0, logits.argmax(1)
    of_data = {_plain(name) for name in trained.data.class_names}
    rows = []
    for i, name in enumerate(names):
        right = predicted[labels == i] == i
        row = {
            "name": name,
            "num_images": len(right) if _plain(name) in of_data else None,
            "accuracy": right.double().mean().item() if len(right) else None,
            "num_assigned": int((predicted == i).sum()),
        }
        rows.append(row)
    num_labelled = int(named.sum())
    images = f"{len(labels):,} {split} images"
    share, interval, notes = None, None, [*trained.notes]
    text = f"none: the data set has no class of these; {images}"
    accuracy = Fact("zero_shot_accuracy", None, text=text)
    if num_labelled:
        scores = score_of(run, logits[named], labels[named])
        share, interval = scores.accuracy, scores.accuracy_interval
        accuracy = Fact("zero_shot_accuracy", share, about=f"of {num_labelled:,} images")
        if others := len(labels) - num_labelled:
            notes.append(f"{others:,} of {images} have other classes.")
    columns = [
        *(Field("name", "class"), Field("num_images", "images")),
        *(Field("accuracy", metric=SHARE), Field("num_assigned", "assigned")),
    ]
    report = Report(
        facts=[
            Fact("run", str(run.path), text=run.name),
            *hidden(split=split, num_images=len(labels), num_labelled=num_labelled),
            accuracy,
            interval_fact(interval, split),
        ],
        tables=[DataTable("classes", columns, rows)],
        notes=notes,
    )
    return report, share
