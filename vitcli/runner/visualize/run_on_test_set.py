"""A trained model together with its test images: what a page of figures is about.

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
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.train.evaluate import Scores, logits_and_labels, score
from vitcli.runner.attn_map.strip import visible
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.run.folder import RunDir

PORTION = 50
BUDGET = 2**28
"""Bytes of attention weights at once; with it, ``PORTION`` images at most."""


@dataclass(frozen=True)
class RunOnTestSet:
    """One run, its test images, and how many of them averages are taken over."""

    predictor: Predictor
    data: DataSet
    num_images: int

    @property
    def run(self) -> RunDir:
        return self.predictor.run

    @property
    def name(self) -> str:
        """The run's name; of a folder that lies elsewhere only the last parts."""
        parts = [part for part in Path(self.run.name).parts if part not in ("/", "..")]
        return "/".join(parts[-3:]) or "run"

    @property
    def slug(self) -> str:
        """The name as that of a folder."""
        return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in self.name)

    @cached_property
    def logits(self) -> Tensor:
        """Of every test image, (N, K), on the CPU."""
        images, spec = self.data.test.to(self.predictor.device), self.predictor.spec
        whole = spec.replace(train=spec.train.replace(limit_batches=None))
        return logits_and_labels(self.predictor.model, images, whole)[0].cpu()

    @cached_property
    def scores(self) -> Scores:
        try:
            return score(self.logits, self.data.test.labels)
        except ValueError as error:
            raise InputError(f"{self.run.name}: {error}") from error

    @property
    def recorded_accuracy(self) -> float | None:
        """What the run itself measured at its end, if it came there."""
        return self.run.read("result.json").get("test_accuracy")

    @property
    def vit(self) -> VisionTransformer:
        """
        Raises:
            NoFigureError: The model is another.
        """
        model = self.predictor.model
        if not isinstance(model, VisionTransformer):
            raise NoFigureError(f"a {model.spec.family} {model.no_maps}")
        if not len(model.blocks):
            raise NoFigureError("the model has no layers")
        return model

    @property
    def attending(self) -> VisionTransformer:
        """
        Raises:
            NoFigureError: No token has weights for others.
        """
        if not self.vit.has_attention_weights:
            raise NoFigureError(f"attention {self.vit.spec.attention!r} has no weights of tokens")
        return self.vit

    @cached_property
    def sample(self) -> Tensor:
        """Indices of ``num_images`` test images, evenly over the test set, which is sorted by class
        in some data sets: (n,).
        """
        total = len(self.data.test)
        count = min(self.num_images, total)
        return torch.arange(count) * total // count

    @cached_property
    def firsts(self) -> list[int]:
        """The first test image of each class, in label order: nobody picked them."""
        labels = self.data.test.labels
        found = [(labels == label).nonzero() for label in range(self.data.num_classes)]
        return [int(rows[0]) for rows in found if len(rows)]

    def batch(self, index: Tensor) -> Tensor:
        """Test images as the model takes them: (B,) -> (B, C, H, W), on its device."""
        pixels = self.data.test.pixels[index].to(self.predictor.device)
        return self.data.normalize(pixels)

    def portions(self, index: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices (B,) and their images, few enough at once to keep attention weights."""
        for part in index.split(self._portion):
            yield part, self.batch(part)

    @property
    def _portion(self) -> int:
        model = self.predictor.model
        if not isinstance(model, VisionTransformer):
            return PORTION
        tokens = model.num_prefix_tokens + model.grid_size[0] * model.grid_size[1]
        size = 4 * len(model.blocks) * model.spec.num_heads * tokens**2
        return max(1, min(PORTION, BUDGET // max(1, size)))

    def picture(self, index: int) -> np.ndarray:
        """A test image to be shown: (H, W, 3) uint8."""
        return visible(self.data.test.pixels[index : index + 1])[0]


class NoFigureError(Exception):
    """A figure has no meaning for a model; the message says why."""


def load_run_on_test_set(
    run: RunDir,
    *,
    num_images: int,
    device: str,
    data_dir: Path | None,
    offline: bool,
    on_message: Callable[[str], None],
) -> RunOnTestSet:
    """Read a run's weights and its data set.

    Raises:
        InputError: No such weights, or no such images.
        ConfigError: The images are not of the run's size.
    """
    predictor = Predictor(run, device)
    spec = predictor.spec.data
    data = load_data(spec, data_dir=data_dir, offline=offline, on_message=on_message)
    if data.img_size != predictor.size or data.in_chans != predictor.in_chans:
        raise ConfigError(f"{run.name} takes images of {predictor.size}, not {data.img_size}")
    if not len(data.test):
        raise InputError(f"{spec.name} has no test images")
    seen = run.read("meta.json").get("data_hash")
    if seen and seen != data.data_hash:
        on_message(f"note: these images differ from those of the training (hash {seen[:12]})")
    return RunOnTestSet(predictor, data, num_images)
