"""A trained run with its data set, ready to be measured and to be looked into.

Axes: N test images, B batch, C channels, H W pixels, K classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from vitcli.core.data.source import DataSet, Images
from vitcli.core.metrics.classification import Scores, logits_and_labels, score
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.contact_sheet import to_rgb
from vitcli.runner.data.extras import refuse_other_task
from vitcli.runner.data.find import own_path
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.experiment.build import encoder_of
from vitcli.runner.machine.device import pick_device
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.run.record import RunRecord, describe_other_images, read_record
from vitcli.runner.run.split import read_sides
from vitcli.runner.text import Listener, ignore_message

OnStage = Callable[[str, int, int], None]
"""Gets the name of a stage, how many of its parts are done, and how many there are at most."""
MAX_BATCH = 50
MAX_BYTES = 2**28
"""Largest size of the attention weights of a batch."""


class NoFigureError(Exception):
    """The model has no such figure; the message says why."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run, its trained module and its data set."""

    run: RunDir
    spec: ExperimentSpec
    """The experiment; ``train.limit_batches`` is that of the measurement."""
    module: nn.Module
    data: DataSet
    device: torch.device
    num_images: int
    """Number of test images for averages."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know of the numbers."""

    def task(self, module: nn.Module | None = None) -> Task:
        task = task_class(self.spec)(self.spec, module or self.module)
        task.fitted = self.record.result or self.record.reached
        task.check_data(self.data)
        return task

    def images(self, split: str) -> Images:
        data = self.data
        images = {"test": data.test, "val": data.val, "train": data.train}[split]
        if images is None:
            raise ConfigError(
                f"{self.run.name} was trained without a validation split (data.val_split)"
            )
        return images.to(self.device)

    @cached_property
    def record(self) -> RunRecord:
        return read_record(self.run)

    @cached_property
    def model(self) -> ImageModel:
        """The encoder."""
        return encoder_of(self.spec, self.module)

    @property
    def class_names(self) -> Sequence[str]:
        return self.spec.data.class_names or self.data.class_names

    @property
    def temperature(self) -> float:
        """Divides the logits, so that probabilities are calibrated; 1 for a run without one."""
        return self.record.temperature or 1.0

    @property
    def name(self) -> str:
        """The run's name; of a longer path only the last three parts."""
        parts = [part for part in Path(self.run.name).parts if part not in ("/", "..")]
        return "/".join(parts[-3:]) or "run"

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in self.name)

    @cached_property
    def logits(self) -> Tensor:
        """Logits of the test images, (N, K), on the CPU."""
        self.require_classifier()
        return logits_and_labels(self.model, self.images("test"), self.spec)[0].cpu()

    @cached_property
    def scores(self) -> Scores:
        return score_of(self.run, self.logits, self.data.test.labels)

    def require_classifier(self) -> None:
        if not self.spec.task.row.classifies:
            raise NoFigureError(f"the task {self.spec.task.name!r} does not classify images")

    @property
    def recorded_score(self) -> float | None:
        return self.record.number(f"test_{self.spec.task.row.headline.name}")

    @property
    def num_scored(self) -> int:
        """The number of test images that ``recorded_score`` is of; a short run measures some."""
        return int(self.record.number("num_test") or len(self.data.test))

    @property
    def vit(self) -> VisionTransformer:
        model = self.model
        if not isinstance(model, VisionTransformer):
            raise NoFigureError(
                f"a {model.spec.family} {model.no_maps or 'has its maps in attn-map'}"
            )
        if not len(model.blocks):
            raise NoFigureError("the model has no layers")
        return model

    @property
    def attention_model(self) -> VisionTransformer:
        if not self.vit.has_attention_weights:
            raise NoFigureError(f"attention {self.vit.spec.attention!r} has no attention matrix")
        return self.vit

    @cached_property
    def sample(self) -> Tensor:
        """Indices of ``num_images`` test images: (n,)."""
        return self.spread_images(self.num_images)

    def spread_images(self, count: int) -> Tensor:
        """Return the indices of ``count`` test images, or of all if there are fewer: (n,).

        They are spread evenly over the test set, because some data sets are sorted by class.
        """
        total = len(self.data.test)
        count = min(count, total)
        return torch.arange(count) * total // count

    @cached_property
    def first_of_each_class(self) -> list[int]:
        labels = self.data.test.labels
        rows = [(labels == label).nonzero() for label in range(self.data.num_classes)]
        return [int(row[0]) for row in rows if len(row)]

    def batch(self, index: Tensor) -> Tensor:
        """Return test images as the model's input on its device: (B,) -> (B, C, H, W)."""
        pixels = self.data.test.pixels[index].to(self.device)
        return self.data.normalize(pixels)

    def batches(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices (B,) and their images, in batches whose attention fits in memory."""
        model, size = self.model, MAX_BATCH
        if isinstance(model, VisionTransformer):
            tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
            image_bytes = 4 * len(model.blocks) * model.spec.num_heads * tokens**2
            size = max(1, min(MAX_BATCH, MAX_BYTES // max(1, image_bytes)))
        for part in index.split(size):
            yield part, self.batch(part)

    def file_name(self, index: int) -> str | None:
        names = self.data.test.names
        return names[index] if names else None

    def label(self, index: int) -> str:
        """Return the class of a test image; of several labels, all."""
        test = self.data.test
        if (sets := test.extra.get("label_set")) is None:
            return self.class_names[int(test.labels[index])]
        names = [self.class_names[k] for k in sets[index].nonzero().flatten().tolist()]
        return ", ".join(names) or "no label"

    def picture(self, index: int) -> np.ndarray:
        """Return a test image for display: (H, W, 3) uint8."""
        return to_rgb(self.data.test.pixels[index : index + 1])[0]


def load_trained_run(
    name: str | RunDir,
    *,
    step: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    offline: bool = False,
    limit_batches: int | None = None,
    num_images: int = 500,
    on_message: Listener = ignore_message,
) -> TrainedRun:
    """Read a run's weights and its data set.

    ``limit_batches`` is the number of batches of 500 images to measure of a split, ``num_images``
    that of test images for averages; ``on_message`` is told how the images are read.
    """
    run = name if isinstance(name, RunDir) else find_run(name)
    spec, where = run.spec(), pick_device(device)
    notes: list[str] = []
    module = load_module(run, spec, str(where), step, notes.append)
    read = partial(
        load_data,
        data_dir=data_dir,
        offline=offline,
        extras=spec.task.extras,
        seed=spec.seed,
        on_message=cache(on_message),  # each note once
    )
    pictures, size, kept = spec.data, spec.model.img_size, read_sides(run, "kept") or {}
    data = read(pictures, kept=kept)
    if size and data.img_size != size and own_path(pictures.name):  # another size came or went
        on_message(f"{run.name}: read at {size[0]}x{size[1]}, the size of its model")
        pictures = pictures.replace(resize=size)
        data = read(pictures, kept=kept)
    if describe_other_images(read_record(run).data_hash, data) and (sides := read_sides(run)):
        data = read(pictures, kept=sides)  # no picture that it has learned is measured
    if data.img_size != size or data.in_chans != spec.model.in_chans:
        raise InputError(
            f"{run.name} takes images of {size}, channels: {spec.model.in_chans}, but"
            f" {spec.data.name} now has {data.img_size}, channels: {data.in_chans}"
        )
    trained = TrainedRun(
        run=run,
        spec=spec.replace(train=spec.train.replace(limit_batches=limit_batches)),
        module=module,
        data=data,
        device=where,
        num_images=num_images,
        notes=notes,
    )
    if problem := describe_other_images(trained.record.data_hash, data):
        notes.append(f"note: {run.name} was trained on {problem}")
    refuse_other_task(spec.task, data)
    try:
        trained.task()
    except ValueError as error:
        raise InputError(f"{run.name}: {error}") from error
    return trained


def score_of(run: RunDir, logits: Tensor, labels: Tensor) -> Scores:
    try:
        return score(logits, labels)
    except ValueError as error:
        raise InputError(f"{run.path}: {error}") from error
