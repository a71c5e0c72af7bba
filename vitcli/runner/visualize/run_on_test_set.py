"""A trained run together with the test images of its data set.

Axes: N test images, B batch, C channels, H W pixels, K classes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitcli.core.data.source import DataSet
from vitcli.core.metrics.classification import Scores, logits_and_labels
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec.task import TaskRow
from vitcli.runner.data.contact_sheet import to_rgb
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.scores import score_of
from vitcli.runner.evaluate.weights import load_module
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import describe_other_images

MAX_BATCH = 50
MAX_BYTES = 2**28
"""Largest size of the attention weights of a batch."""


@dataclass(frozen=True)
class RunOnTestSet:
    """Run with its test images."""

    predictor: Predictor
    data: DataSet
    num_images: int
    """Number of test images for averages."""

    @property
    def run(self) -> RunDir:
        return self.predictor.run

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
        """Logits of all test images, (N, K), on the CPU."""
        self.require_classifier()
        images, spec = self.data.test.to(self.predictor.device), self.predictor.spec
        whole = spec.replace(train=spec.train.replace(limit_batches=None))
        return logits_and_labels(self.predictor.model, images, whole)[0].cpu()

    @cached_property
    def scores(self) -> Scores:
        return score_of(self.run, self.logits, self.data.test.labels)

    @cached_property
    def whole_task(self) -> Task:
        """The run's task with its whole trained module, of which the model is the encoder."""
        spec, device = self.predictor.spec, str(self.predictor.device)
        whole = spec.replace(train=spec.train.replace(limit_batches=None))
        return task_class(spec)(whole, load_module(self.run, spec, device))

    @property
    def task(self) -> TaskRow:
        return self.predictor.spec.task.row

    def require_classifier(self) -> None:
        """Refuse a figure about classes if the model was not trained to tell them apart."""
        if not self.task.classifies:
            name = self.predictor.spec.task.name
            raise NoFigureError(f"the task {name!r} does not classify images")

    @property
    def recorded_score(self) -> float | None:
        return self.run.read("result.json").get(f"test_{self.task.headline.name}")

    @property
    def num_scored(self) -> int:
        """The number of test images that ``recorded_score`` is of; a short run measures some."""
        return int(self.run.read("result.json").get("num_test") or len(self.data.test))

    @property
    def vit(self) -> VisionTransformer:
        """The model, if it is a Vision Transformer with layers."""
        model = self.predictor.model
        if not isinstance(model, VisionTransformer):
            raise NoFigureError(
                f"a {model.spec.family} {model.no_maps or 'has its maps in attn-map'}"
            )
        if not len(model.blocks):
            raise NoFigureError("the model has no layers")
        return model

    @property
    def attention_model(self) -> VisionTransformer:
        """The model, if its attention has matrices."""
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
        found = [(labels == label).nonzero() for label in range(self.data.num_classes)]
        return [int(rows[0]) for rows in found if len(rows)]

    def batch(self, index: Tensor) -> Tensor:
        """Return test images as the model's input on its device: (B,) -> (B, C, H, W)."""
        pixels = self.data.test.pixels[index].to(self.predictor.device)
        return self.data.normalize(pixels)

    def batches(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield indices (B,) and their images, in batches whose attention fits in memory."""
        for part in index.split(self._batch_size):
            yield part, self.batch(part)

    @property
    def _batch_size(self) -> int:
        model = self.predictor.model
        if not isinstance(model, VisionTransformer):
            return MAX_BATCH
        tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
        size = 4 * len(model.blocks) * model.spec.num_heads * tokens**2
        return max(1, min(MAX_BATCH, MAX_BYTES // max(1, size)))

    def file_name(self, index: int) -> str | None:
        names = self.data.test.names
        return names[index] if names else None

    def picture(self, index: int) -> np.ndarray:
        """Return a test image for display: (H, W, 3) uint8."""
        return to_rgb(self.data.test.pixels[index : index + 1])[0]


class NoFigureError(Exception):
    """The model has no such figure; the message says why."""


def load_run_on_test_set(
    run: RunDir,
    *,
    num_images: int,
    device: str,
    data_dir: Path | None,
    offline: bool,
    on_message: Callable[[str], None],
) -> RunOnTestSet:
    """Read a run's weights and its data set."""
    predictor = Predictor(run, device)
    spec = predictor.spec.data
    data = load_data(
        spec,
        data_dir=data_dir,
        offline=offline,
        extras=predictor.spec.task.extras,
        seed=predictor.spec.seed,
        on_message=on_message,
    )
    if data.img_size != predictor.size or data.in_chans != predictor.in_chans:
        raise ConfigError(
            f"{run.name}: the model takes images of {predictor.size}, but {spec.name} has"
            f" {data.img_size}"
        )
    if not len(data.test):
        raise InputError(f"{spec.name} has no test images")
    if problem := describe_other_images(run.read("meta.json").get("data_hash"), data):
        on_message(f"note: {run.name} was trained on {problem}")
    return RunOnTestSet(predictor, data, num_images)
