"""Optimisers and learning-rate schedules: their tables, and the spec that names a row of each."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from vitcli.core.spec.base import ListToo, Rate, Spec
from vitcli.core.spec.rows import Row, RowOf

TRAIN = "vitcli.core.train"


@dataclass(frozen=True, kw_only=True)
class OptimizerRow(Row):
    """An optimiser; ``build`` takes (named parameters, spec) and returns torch's optimisers."""

    state_copies: float
    """Numbers that it remembers for each parameter."""
    needs_block_matrices: bool = False
    """Whether it is meant for the matrices of transformer blocks, and refuses to do without."""


OPTIMIZERS: dict[str, OptimizerRow] = {
    "adamw": OptimizerRow(
        about="Adam with decoupled weight decay (Loshchilov and Hutter 2019)",
        build=f"{TRAIN}.optim:adamw",
        state_copies=2,
    ),
    "adam": OptimizerRow(
        about="Adam; weight_decay is added to the gradient (Kingma and Ba 2015)",
        build=f"{TRAIN}.optim:adam",
        state_copies=2,
    ),
    "sgd": OptimizerRow(
        about="stochastic gradient descent with momentum",
        build=f"{TRAIN}.optim:sgd",
        state_copies=1,
    ),
    "muon": OptimizerRow(
        about="Muon for the matrices of the blocks, AdamW for the rest (Jordan et al. 2024)",
        build=f"{TRAIN}.optim:muon",
        state_copies=1.2,
        needs_block_matrices=True,
    ),
}

SCHEDULES: dict[str, Row] = {
    "cosine": Row(
        about="half a cosine (Loshchilov and Hutter 2017)", build=f"{TRAIN}.schedule:cosine"
    ),
    "linear": Row(about="a straight line", build=f"{TRAIN}.schedule:linear"),
    "constant": Row(about="no decay", build=f"{TRAIN}.schedule:constant"),
}


class OptimSpec(Spec):
    """The optimiser and its learning-rate schedule."""

    name: Annotated[str, RowOf(OPTIMIZERS)] = "adamw"
    """The optimiser."""
    lr: float = Field(1e-3, gt=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.05, ge=0, le=10)
    decay_all: bool = False
    """Decay norms, biases, positions and tokens too, as a bare torch.optim call does."""
    momentum: Rate = 0.9
    """For SGD."""
    nesterov: bool = False
    """For SGD."""
    betas: Annotated[tuple[Rate, Rate], ListToo] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0, le=1)
    muon_lr: float = Field(0.02, gt=0, le=100)
    """Peak rate of the matrices under Muon; the other parameters take ``lr`` with AdamW."""
    muon_momentum: Rate = 0.95
    """Nesterov momentum of the matrices under Muon."""
    schedule: Annotated[str, RowOf(SCHEDULES)] = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_epochs: float = Field(0.0, ge=0, le=100_000)
    """Linear warm-up; may be a fraction of an epoch."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Where the schedule ends, as a share of the peak."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Clip the gradient's norm; null does not clip."""
