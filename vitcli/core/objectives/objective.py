"""The interface of an objective. Axes: B batch, N images, C channels, H W pixels.

A training, its dry run, its result and its study use this interface and the objective's row in the
table of tasks. They never use its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vitcli.core import ranks
from vitcli.core.data.batches import (
    Batch,
    Channels,
    DrawnAhead,
    EpochPlan,
    augmented_batch,
    channels_on_device,
    epoch_rows,
    num_batches,
    rows_on_device,
    split_batches,
)
from vitcli.core.data.policy import Size
from vitcli.core.data.source import DataSet, Images
from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.pictures import Grid
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import evaluating, pinned
from vitcli.plugin import load_target

Outputs = dict[str, Tensor]
"""Tensors of a model for every image of a split; the first axis is N."""


class Task(ABC):
    """The losses of a batch and the measures of an evaluation; ``module`` is of ``make_module``."""

    encoder_name: ClassVar[str] = ""
    """Name of the encoder inside the module; empty if the module is the encoder."""
    encoder_copies: ClassVar[tuple[str, ...]] = ()
    """Names of the parts inside the module that start with the weights of the encoder."""
    has_rows = True
    """Whether ``make_batch`` makes the batches from ``rows``; else only ``batches`` does."""

    def __init_subclass__(cls) -> None:
        """Refuse a class whose own ``batches`` a CUDA graph would pass by."""
        if "batches" in vars(cls) and "has_rows" not in vars(cls):
            raise TypeError(f"{cls.__name__} makes its own batches: set has_rows = False")

    def __init__(self, spec: ExperimentSpec, module: nn.Module) -> None:
        self.spec, self.module = spec, module
        self.network = module
        """The module, compiled or not, that ``losses`` calls."""
        self.augmented_batch = augmented_batch
        """The function of ``core.data``, compiled or not, that makes the training batches."""
        self.autocast: torch.dtype | None = None
        """Type of the forward pass in the training; None is fp32."""
        self.fitted: Mapping[str, Any] = {}
        """Numbers of the run's result, with what ``choose`` returned for it."""
        self._ahead = DrawnAhead(self._draw_pinned)

    @property
    def teacher(self) -> ImageModel | None:
        """Return the frozen model, outside the module, that ``losses`` reads; usually None.

        Its weights are those of the run in ``task.teacher``, which the caller loads.
        """
        return None

    @property
    def labelled_copies(self) -> int | None:
        """Return how many copies of each image ``teacher`` labels; None if it is in each step."""
        return None

    @classmethod
    @abstractmethod
    def make_module(cls, spec: ExperimentSpec) -> nn.Module:
        """Return everything that is trained and saved, with the seed's initial weights."""

    @classmethod
    def encoder(cls, module: nn.Module) -> ImageModel:
        """Return the part that other trainings may start from and that attention maps show."""
        found = module.get_submodule(cls.encoder_name)
        assert isinstance(found, ImageModel)
        return found

    def batches(self, data: DataSet, epoch: int, first_batch: int = 0) -> Iterator[Batch]:
        """Yield the training batches of an epoch, which depend on seed, epoch and image only."""
        # One transfer per epoch is cheaper than one per batch.
        tables = rows_on_device(self.rows(data, epoch), data.train.pixels.device)
        size, parts = self.spec.train.batch_size, self.spec.train.accumulate
        end = num_batches(len(data.train), size) * size
        for start in range(first_batch * size, end, size):
            part = {name: table[start : start + size] for name, table in tables.items()}
            if ranks.size() == 1:
                yield self.make_batch(data, part)
            else:
                yield ranks.own_batch(part, parts, partial(self.make_batch, data))

    def make_batch(self, data: DataSet, rows: EpochPlan) -> Batch:
        """Return the batch of B rows, which are on the device. A CUDA graph can capture this.

        A task that draws more tables in ``rows`` overrides this method, to add their part.
        """
        augment = self.spec.data.augment
        return self.augmented_batch(data.train, rows, augment, self._channels, data.num_classes)

    @cached_property
    def _channels(self) -> Channels:
        assert self.spec.data.mean is not None
        assert self.spec.data.std is not None
        device = next(self.module.parameters()).device
        return channels_on_device(self.spec.data.mean, self.spec.data.std, device)

    def rows(self, data: DataSet, epoch: int) -> EpochPlan:
        """Return the order and the random parameters of an epoch, on the CPU."""
        count, size = len(data.train), data.img_size
        if not data.train.pixels.is_cuda:
            return self.draw_rows(epoch, count, size, False)
        return self._ahead.take(epoch, count, size, True)

    def draw_ahead(self, data: DataSet, epoch: int) -> None:
        """Begin to draw an epoch in a thread, if a GPU trains meanwhile."""
        if data.train.pixels.is_cuda and epoch < self.spec.train.epochs:
            self._ahead.start(epoch, len(data.train), data.img_size, True)

    def draw_rows(self, epoch: int, num_images: int, size: Size, is_cuda: bool) -> EpochPlan:
        """Draw the order and the random parameters of an epoch. A thread may call this."""
        augment, seed = self.spec.data.augment, self.spec.seed
        return epoch_rows(num_images, size, augment, seed=seed, epoch=epoch, at_once=is_cuda)

    def _draw_pinned(self, epoch: int, num_images: int, size: Size, is_cuda: bool) -> EpochPlan:
        return pinned(self.draw_rows(epoch, num_images, size, is_cuda))

    def eval_batches(self, images: Images) -> Iterator[Batch]:
        """Yield the images that ``limit_images`` leaves, normalised, in batches of the device."""
        return split_batches(images, self.spec)

    @classmethod  # noqa: B027  (most tasks have nothing to do)
    def read_data(cls, module: nn.Module, spec: ExperimentSpec, data: DataSet) -> None:
        """Fill the buffers of a new module that follow from the data, such as a vocabulary.

        Checkpoints hold these buffers. A ValueError says what the data lack.
        """

    def check_data(self, data: DataSet) -> None:  # noqa: B027  (most tasks need only images)
        """Refuse data without something that the task reads: ValueError("task.sound: ...")."""

    @abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the scalars that the task's row names; the training minimises ``loss``.

        Of several ranks, each computes its rows. The gradients and the scalars are then averaged,
        which suits means over a batch. A loss that compares rows gathers them with ``core.ranks``.

        On CUDA, a graph replays one of the first calls. So the scalars must depend only on tensors
        and on the default generator, and the host must not read them.
        """

    def after_step(self) -> None:  # noqa: B027  (most tasks have nothing to do)
        """Update what the optimiser does not, such as a teacher; a CUDA graph replays it."""

    def diagnose(self, numbers: Mapping[str, float]) -> str:
        """Return what is wrong with a training that seems to work; empty if nothing is.

        ``numbers`` are the means of ``reports`` over an epoch. The text is one sentence.
        """
        return ""

    @torch.inference_mode()
    def features(
        self,
        module: nn.Module,
        images: Images,
        on_images: Callable[[int], None] = lambda count: None,
    ) -> Tensor:
        """Return the features (N, F) in fp32 of a split, in order, from the module's encoder.

        ``on_images`` gets the number of images done so far, after each batch.
        """
        encoder = self.encoder(module)
        found, done = [], 0
        with evaluating(encoder):
            for batch in self.eval_batches(images):
                found.append(encoder.features(batch["images"]).float())
                done += len(found[-1])
                on_images(done)
        return torch.cat(found)

    def pictures(self, module: nn.Module, data: DataSet, index: Tensor) -> dict[str, Grid]:
        """Return what the module, in eval mode, does with the test images at ``index``, by name."""
        return {}

    def choose(self, outputs: Outputs) -> dict[str, float]:
        """Return numbers that the validation images decide, such as a threshold, for the result."""
        return {}

    @property
    def caveat(self) -> str:
        """Return what a reader of ``measure`` and ``answers`` should know; empty if nothing."""
        return ""

    def answers(self, outputs: Outputs, class_names: Sequence[str]) -> list[dict[str, Any]]:
        """Return for each picture what ``predict`` says, by the names in ``answers`` of the row."""
        raise ValueError(f"task {self.spec.task.name} answers nothing")

    def to_pixels(self, images: Tensor) -> Tensor:
        """Return normalised images as pixels for display: (B, C, H, W) -> (B, 3, H, W) uint8."""
        scale, shift = self._channels
        levels = ((images.float() + shift) / scale).round().clamp(0, 255).to(torch.uint8)
        return levels if levels.shape[1] == 3 else levels[:, :1].expand(-1, 3, -1, -1)

    def zero_shot(
        self, module: nn.Module, images: Images, class_names: Sequence[str]
    ) -> tuple[Tensor, list[str]]:
        """Return logits (N, K) for classes given by name, and the words that no caption has."""
        raise ValueError(f"task {self.spec.task.name} reads no text")

    @abstractmethod
    def outputs(self, module: nn.Module, images: Images) -> Outputs:
        """Return the tensors that ``measure`` needs, for every image of a split, in order.

        ``train.limit_batches`` limits the split.
        """

    @abstractmethod
    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return every number of an evaluation by name, including the row's headline.

        An output that is infinite or NaN is a ValueError.
        """


def task_class(spec: ExperimentSpec) -> type[Task]:
    kind: Any = load_target(spec.task.row.build)
    if not isinstance(kind, type):
        kind()  # what stands for a task without its code says so
    task: type[Task] = kind
    return task
