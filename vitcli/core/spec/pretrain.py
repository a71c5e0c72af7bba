"""The spec of a pre-training: what an experiment trains first, to start from its encoder."""

from typing import Annotated, Self

from pydantic import model_validator

from vitcli.core.spec.base import Spec
from vitcli.core.spec.data import AugmentSpec
from vitcli.core.spec.optim import OptimSpec
from vitcli.core.spec.task import TASK, ClassifySpec, TaskSpec
from vitcli.core.spec.train import TrainSpec


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
