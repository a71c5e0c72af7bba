"""The spec of one training run: model, data set, optimiser, training, task and random seed."""

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from vitcli.core.spec.data import AugmentSpec, DataSpec
from vitcli.core.spec.families import FAMILY, VitSpec
from vitcli.core.spec.model import ModelSpec
from vitcli.core.spec.optim import OPTIMIZERS, OptimSpec
from vitcli.core.spec.rows import Frozen, FrozenMapping, Spec
from vitcli.core.spec.task import TASK, ClassifySpec, TaskSpec
from vitcli.core.spec.train import TrainSpec

ACCUMULATE = (
    "train.accumulate: batch norm would see only a part of each batch, which changes the gradients;"
    " set train.accumulate to 1"
)


class PretrainSpec(Spec):
    """A training on the same images, with the same model and random seed."""

    task: Annotated[TaskSpec, TASK] = ClassifySpec()
    """Training objective of the pre-training."""
    augment: AugmentSpec = AugmentSpec()
    """Augmentation of the pre-training."""
    optim: OptimSpec = OptimSpec()
    """Optimiser and learning-rate schedule of the pre-training."""
    train: TrainSpec = TrainSpec()
    """Length, batch size and arithmetic of the pre-training."""

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.train.init:
            raise ValueError("train.init: a pre-training starts from random weights; remove it")
        return self


class ExperimentSpec(Spec):
    """One training run."""

    model: Annotated[ModelSpec, FAMILY] = VitSpec()
    """Architecture and size of the model; a Vision Transformer by default."""
    data: DataSpec = DataSpec()
    """Data set, preprocessing and augmentation."""
    optim: OptimSpec = OptimSpec()
    """Optimiser and learning-rate schedule."""
    train: TrainSpec = TrainSpec()
    """Length, batch size and arithmetic of the training."""
    task: Annotated[TaskSpec, TASK] = ClassifySpec()
    """Training objective; classification by default."""
    pretrain: PretrainSpec | None = None
    """Training that comes first and whose encoder this training starts from; unset trains nothing
    first. In a file, ``experiment: NAME`` takes its fields from an experiment."""
    code: FrozenMapping = Field(default_factory=Frozen)
    """Own code that the experiment uses: name of a file -> its SHA-256, or name of an installed
    package -> its version. A file lists paths, such as ``[part.py]``."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Random seed of the initial weights, the order of the images, augmentation and dropout."""

    @property
    def pretraining(self) -> "ExperimentSpec | None":
        """Return the experiment of ``pretrain``; None if it is unset.

        Its data set has all images. Only if its task reads labels, it has the labelled ones.
        """
        part = self.pretrain
        if part is None:
            return None
        labels = self.data.labels if part.task.row.uses_labels else None
        return ExperimentSpec(
            model=self.model,
            data=self.data.replace(augment=part.augment, labels=labels),
            optim=part.optim,
            train=part.train,
            task=part.task,
            seed=self.seed,
        )

    @property
    def refusal(self) -> str | None:
        """Return why a new training with these fields is refused, or None if it is allowed.

        The spec itself is valid, because runs of earlier versions may have such a configuration.
        """
        if self.train.accumulate > 1 and self.model.has_batch_norm:
            return ACCUMULATE
        if self.data.mean and max(self.data.mean) > 1:
            return (
                "data.mean: a value is above 1, but pixels lie between 0 and 1; divide mean and std"
                " by 255"
            )
        if self.train.accumulate > 1 and self.task.compares_images:
            return (
                f"train.accumulate: task {self.task.name!r} compares the images of a whole batch;"
                " set it to 1"
            )
        if self.train.batch_size == 1 and self.task.compares_images:
            return f"train.batch_size: task {self.task.name!r} compares the images of a batch"
        if self.train.label_smoothing and "accuracy" not in self.task.row.reports:
            return f"train.label_smoothing: task {self.task.name!r} smooths no labels; set it to 0"
        first = self.pretraining if self.pretrain else None
        return f"pretrain.{first.refusal}" if first and first.refusal else None

    @model_validator(mode="after")
    def _check_training(self) -> Self:
        model = self.model
        if self.train.grad_checkpointing and not model.has_blocks:
            raise ValueError(
                f"train.grad_checkpointing: family {model.family!r} has no blocks to recompute"
            )
        if self.train.batch_size < model.min_batch:
            raise ValueError(
                f"train.batch_size: batch norm needs {model.min_batch} images at a time"
            )
        optimizer = OPTIMIZERS[self.optim.name]
        if optimizer.needs_block_matrices and not model.has_block_matrices:
            raise ValueError(
                f"optim.name: {self.optim.name} takes the matrices of transformer blocks, and the"
                " model has none; take adamw"
            )
        if self.data.labels and not self.task.row.uses_labels:
            raise ValueError(f"data.labels: task {self.task.name!r} reads no labels; remove it")
        self.task.check(model, self.data, self.train)
        self._check_fine_tuning()
        if not self.pretrain:
            return self
        if self.train.init:
            raise ValueError("train.init: the training starts from 'pretrain'; remove one of them")
        try:
            _ = self.pretraining
        except ValidationError as error:
            problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise ValueError(f"pretrain.{problem}") from error
        return self

    def _check_fine_tuning(self) -> None:
        by_layer = {
            "optim.layer_decay": self.optim.layer_decay < 1,
            "train.freeze": isinstance(self.train.freeze, int),
        }
        others = {
            "train.freeze": self.train.freeze is not None,
            "train.class_balance": self.train.class_balance != "none",
            "train.init_head": self.train.init_head != "random",
        }
        for name, is_used in (by_layer | others).items():
            if is_used and self.task.name != "classify":
                raise ValueError(
                    f"{name}: only task 'classify' reads it, and task {self.task.name!r} does not"
                )
        for name, is_used in by_layer.items():
            if is_used and not self.model.has_blocks:
                raise ValueError(f"{name}: family {self.model.family!r} has no blocks to count")
        is_probe = self.train.init_head == "probe"
        if is_probe and not (self.train.init or self.pretrain or self.model.is_pretrained):
            raise ValueError("train.init_head: a probe needs trained weights; set train.init")
        if self.train.early_stopping and not self.data.val_split:
            raise ValueError("train.early_stopping: set data.val_split, the images that decide")
