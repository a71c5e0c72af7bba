"""Zero-shot classification with a run that was trained with captions.

Axes: N images, K named classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from vitcli.core.data.batches import limit_images
from vitcli.core.objectives.objective import Task, task_class
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.scores import interval_fact
from vitcli.runner.evaluate.trained_run import load_trained_run, score_of
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, hidden
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.text import ignore_message, printable


@dataclass(frozen=True, kw_only=True)
class NamedClass:
    """What was found for a class that is given by name."""

    name: str
    num_images: int | None
    """Number of images of this class; None if the data set has no such class."""
    accuracy: float | None
    """Share of these images that are assigned to the class; None without such images."""
    num_assigned: int
    """Number of all measured images that are assigned to the class."""


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """The result of ``vitcli eval --zero-shot``."""

    run: RunDir
    split: str
    accuracy: float | None
    """Accuracy on the images whose class is named; None if the data set has none of the classes."""
    interval: tuple[float, float] | None
    """95 % Wilson interval: the sampling error of the measured images alone."""
    num_images: int
    num_labelled: int
    """Number of images whose class is named."""
    classes: tuple[NamedClass, ...]

    def report(self) -> Report:
        images = f"{self.num_images:,} {self.split} images"
        accuracy = Fact(
            "zero_shot_accuracy",
            self.accuracy,
            text=f"none: the data set has no class of these; {images}",
        )
        notes = []
        if self.accuracy is not None:
            accuracy = replace(accuracy, text=None, about=f"of {self.num_labelled:,} images")
            others = self.num_images - self.num_labelled
            notes = [f"{others:,} of {images} have other classes."] if others else []
        columns = [
            *(Field("name", "class"), Field("num_images", "images")),
            *(Field("accuracy", metric=SHARE), Field("num_assigned", "assigned")),
        ]
        return Report(
            facts=[
                Fact("run", str(self.run.path), text=self.run.name),
                *hidden(split=self.split, num_images=self.num_images),
                *hidden(num_labelled=self.num_labelled),
                accuracy,
                interval_fact(self.interval, self.split),
            ],
            tables=[DataTable("classes", columns, [*map(asdict, self.classes)])],
            notes=notes,
        )


def zero_shot_run(
    name: str,
    class_names: Sequence[str] | None = None,
    *,
    split: str = "test",
    step: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    offline: bool = False,
    limit_batches: int | None = None,
    on_message: Callable[[str], None] = ignore_message,
) -> ZeroShot:
    """Assign the images of a split to classes that are given by name alone.

    Args:
        class_names: The classes; by default those of the data set.
    """
    run = find_run(name)
    task_name = run.spec().task.name
    if task_class(run.spec()).zero_shot is Task.zero_shot:
        raise ConfigError(
            f"--zero-shot: {run.name} was trained with task {task_name!r}, which has no text;"
            " take a run that was trained with captions"
        )
    trained = load_trained_run(
        name,
        step=step,
        device=device,
        data_dir=data_dir,
        offline=offline,
        limit_batches=limit_batches,
        on_message=on_message,
    )
    images, known = trained.images(split), trained.data.class_names
    names = check_names(class_names or known)
    task = trained.task()
    try:
        logits, unknown = task.zero_shot(trained.module, images, names)
    except ValueError as error:
        raise ConfigError(f"--classes: {error}") from error
    if unknown:
        words = ", ".join(printable(word) for word in unknown)
        on_message(f"unknown words, because no caption of the training has them: {words}")
    labels = own_labels(limit_images(images, trained.spec).labels, known, names)
    return summarize(run, split, names, logits.cpu(), labels.cpu(), known)


def check_names(names: Sequence[str]) -> list[str]:
    """Return the names without outer spaces."""
    stripped = [name.strip() for name in names]
    if "" in stripped or len(stripped) < 2:
        raise ConfigError('--classes takes at least two names, such as --classes "cat,dog"')
    twice = next((name for i, name in enumerate(stripped) if name in stripped[:i]), None)
    if twice is not None:
        raise ConfigError(f"--classes names {printable(twice)!r} twice")
    return stripped


def own_labels(labels: Tensor, known: Sequence[str], names: Sequence[str]) -> Tensor:
    """Return for each image the place of its class in ``names``, or -1: (N,) -> (N,)."""
    places = {_plain(name): i for i, name in enumerate(names)}
    table = torch.tensor([places.get(_plain(name), -1) for name in known], device=labels.device)
    return table[labels]


def _plain(name: str) -> str:
    return name.casefold().replace("_", " ")


def summarize(
    run: RunDir,
    split: str,
    names: Sequence[str],
    logits: Tensor,
    labels: Tensor,
    known: Sequence[str],
) -> ZeroShot:
    """Return the result for logits (N, K), and labels (N,) that are -1 for unnamed classes."""
    named, found = labels >= 0, logits.argmax(1)
    of_data = {_plain(name) for name in known}
    scores = score_of(run, logits[named], labels[named]) if named.any() else None
    rows = []
    for i, name in enumerate(names):
        own = labels == i
        count = int(own.sum())
        rows.append(
            NamedClass(
                name=name,
                num_images=count if _plain(name) in of_data else None,
                accuracy=(found[own] == i).double().mean().item() if count else None,
                num_assigned=int((found == i).sum()),
            )
        )
    return ZeroShot(
        run=run,
        split=split,
        accuracy=None if scores is None else scores.accuracy,
        interval=None if scores is None else scores.accuracy_interval,
        num_images=len(labels),
        num_labelled=int(named.sum()),
        classes=tuple(rows),
    )
