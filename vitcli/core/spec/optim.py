"""Tables of optimisers and learning-rate schedules, and the spec that chooses from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from vitcli.core.spec.rows import AcceptsList, Rate, Row, RowOf, Spec
from vitcli.plugin import Registry

TRAIN = "vitcli.core.train"


@dataclass(frozen=True, kw_only=True)
class OptimizerRow(Row):
    """An optimiser. ``build`` takes (named parameters, spec) and returns torch optimisers."""

    state_copies: float
    """Number of values that the optimiser stores for each parameter."""
    needs_block_matrices: bool = False
    """Whether the optimiser refuses models without matrices in transformer blocks."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of an own class that the fields of ``optim`` of these names replace."""


OPTIMIZERS = Registry[OptimizerRow]("optim.name")
OPTIMIZERS |= {
    "adamw": OptimizerRow(
        about="Adam with decoupled weight decay (Loshchilov and Hutter 2019)",
        build=f"{TRAIN}.optim:adamw",
        state_copies=2,
    ),
    "adam": OptimizerRow(
        about="Adam with weight decay added to the gradient (Kingma and Ba 2015)",
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

SCHEDULES = Registry[Row]("optim.schedule")
SCHEDULES |= {
    "cosine": Row(
        about="half a period of a cosine (Loshchilov and Hutter 2017)",
        build=f"{TRAIN}.schedule:cosine",
    ),
    "linear": Row(about="linear decay", build=f"{TRAIN}.schedule:linear"),
    "constant": Row(about="no decay", build=f"{TRAIN}.schedule:constant"),
}


class OptimSpec(Spec):
    """Optimiser, learning-rate schedule and gradient clipping."""

    name: Annotated[str, RowOf(OPTIMIZERS)] = "adamw"
    """Optimiser of the training."""
    lr: float = Field(1e-3, gt=0, le=100)
    """Peak learning rate."""
    weight_decay: float = Field(0.05, ge=0, le=10)
    """Weight decay of the matrices; 0 switches it off."""
    decay_all: bool = False
    """Apply weight decay to norms, biases, positions, CLS and registers too, as a plain torch.optim
    call does."""
    momentum: Rate = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov momentum for SGD."""
    betas: Annotated[tuple[Rate, Rate], AcceptsList] = (0.9, 0.999)
    """Decay rates of the two averages of Adam and AdamW."""
    eps: float = Field(1e-8, gt=0, le=1)
    """Epsilon in the denominator of Adam and AdamW."""
    muon_lr: float = Field(0.02, gt=0, le=100)
    """Peak learning rate of the matrices under Muon; AdamW trains all others with ``lr``."""
    muon_filter_lr: float | None = Field(None, gt=0, le=100)
    """Peak learning rate of convolution filters under Muon; unset leaves them to AdamW."""
    muon_momentum: Rate = 0.95
    """Nesterov momentum of the matrices under Muon."""
    layer_decay: float = Field(1.0, gt=0, le=1)
    """Factor between the learning rates of a layer and the one above it, for fine-tuning; 1 gives
    all layers the same. The head has the full rate."""
    schedule: Annotated[str, RowOf(SCHEDULES)] = "cosine"
    """Decay of the learning rate after the warm-up."""
    warmup_epochs: float = Field(0.0, ge=0, le=100_000)
    """Epochs of linear warm-up, also fractions of an epoch; 0 has no warm-up."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Final learning rate as a fraction of the peak; 0 decays to zero."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Maximum norm of the gradient, enforced by clipping; null does not clip."""
