"""Measurement of a trained run on a split of its data set."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.data.source import DataSet, Images
from vitcli.core.inspect.cost import count_parameters
from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.tasks import Metric
from vitcli.core.tasks.build import task_class
from vitcli.core.train.scores import Scores, score
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.predictions import save_outputs
from vitcli.runner.run.record import describe_other_images
from vitcli.runner.text import ignore_message


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
        name: A run folder, a name under runs/, or a bundled model.
        split: ``test``, ``val`` or ``train``.
        tta: Average the logits of each image and its mirror image.
        step: The step of the checkpoint; by default the last.
        device: cpu, cuda, mps or auto.
        data_dir: The only folder in which the data set is searched.
        offline: Never open a connection.
        limit_batches: The number of batches of 500 images to measure; by default all.
        predictions: An .npz file to write logits and labels to.
        on_message: Receives notes for the user.

    Raises:
        ConfigError: The run has no validation split.
        InputError: The run, a checkpoint or the data set is missing or does not fit.
    """
    run = find_run(name)
    spec = run.spec()
    where = pick_device(device)
    module = load_module(run, spec, str(where), step, on_message)
    data = load_data(spec.data, data_dir=data_dir, offline=offline, on_message=on_message)
    if problem := describe_other_images(run.read("meta.json").get("data_hash"), data):
        on_message(f"note: {run.name} was trained on {problem}")
    images = _choose_split(run, spec, data, split)
    spec = spec.replace(train=spec.train.replace(limit_batches=limit_batches))
    row, task = spec.task.row, task_class(spec)(spec, module)
    outputs = task.outputs(module, images.to(where), flip=tta)
    if predictions:
        save_outputs(predictions, outputs)
    return Evaluation(
        run=run,
        measured=task.measure(outputs),
        headline=row.headline,
        scores=score(outputs["logits"], outputs["labels"]) if row.classifies else None,
        num_images=len(next(iter(outputs.values()))),
        class_names=spec.data.class_names or data.class_names,
        parameters=count_parameters(module),
        split=split,
        tta=tta,
    )


def _choose_split(run: RunDir, spec: ExperimentSpec, data: DataSet, split: str) -> Images:
    """Return the images of a split, if they fit the model of the run."""
    images = {"test": data.test, "val": data.val, "train": data.train}[split]
    if images is None:
        raise ConfigError(f"{run.name} was trained without a validation split (data.val_split)")
    if data.img_size != spec.model.img_size or data.in_chans != spec.model.in_chans:
        raise InputError(
            f"{run.name} takes images of {spec.model.img_size}, but {spec.data.name} now has"
            f" {data.img_size}"
        )
    return images
