"""The spec of the task ``ssat``."""

from typing import Literal

from pydantic import Field

from vitcli.core.metric import ACCURACY
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.mae.spec import MaskingSpec


class SsatSpec(MaskingSpec):
    """Classification and reconstruction of masked patches in one training."""

    name: Literal["ssat"] = "ssat"
    class_weight: float = Field(0.1, gt=0, lt=1)
    """Weight of the cross-entropy in the loss; the reconstruction has the rest of 1."""


ROW = TaskRow(
    about="classify and reconstruct masked patches in one training (Das et al. 2024)",
    build="vitcli.plugins.ssat.ssat:Ssat",
    spec=SsatSpec,
    headline=ACCURACY,
    reports=("loss", "accuracy", "masked_mse"),
    recorded=("loss", "accuracy", "masked_mse", "mse_ratio"),
    classifies=True,
)
