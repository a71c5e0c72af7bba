"""The spec of the task ``ssat``."""

from typing import Literal

from pydantic import Field

from vitcli.core.objectives.mae.spec import MaskingSpec


class SsatSpec(MaskingSpec):
    """Classification and reconstruction of masked patches in one training."""

    name: Literal["ssat"] = "ssat"
    class_weight: float = Field(0.1, gt=0, lt=1)
    """Weight of the cross-entropy in the loss; the reconstruction has the rest of 1."""
