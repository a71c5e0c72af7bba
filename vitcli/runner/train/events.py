"""What a training tells whoever watches it."""

from dataclasses import dataclass
from typing import Any

import torch

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.run.folder import RunDir


@dataclass(frozen=True, kw_only=True)
class Started:
    """Training is about to begin or to go on."""

    run: RunDir
    spec: ExperimentSpec
    device: torch.device
    precision: str
    kernels: str
    parameters: int
    num_train: int
    num_test: int
    steps_per_epoch: int
    first_step: int


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Some steps further in an epoch (counted from 1)."""

    epoch: int
    batch: int
    step: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float
    seconds_left: float
    gpu_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class EpochDone:
    """The line that metrics.jsonl gained."""

    record: dict[str, Any]


Event = Started | Progress | EpochDone
