"""The spec of the task ``lejepa``."""

from typing import Literal

from pydantic import Field

from vitcli.core.spec.rows import Probability
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.views.spec import ViewsSpec, knn_accuracy


class LejepaSpec(ViewsSpec):
    """LeJEPA: views of an image have equal embeddings, and all embeddings form a Gaussian."""

    name: Literal["lejepa"]
    sigreg_weight: Probability = 0.05
    """Weight of the regulariser SIGReg; the invariance has the rest of the weight."""
    num_slices: int = Field(256, ge=1, le=65536)
    """Number of random directions of SIGReg at each step."""
    proj_dim: int = Field(32, ge=1, le=65536)
    """Width of the embeddings that are compared."""
    hidden_dim: int = Field(512, ge=1, le=65536)
    """Hidden width of the projection head."""


ROW = TaskRow(
    about="equal, Gaussian embeddings of views (LeJEPA, Balestriero and LeCun 2025)",
    build="vitcli.plugins.lejepa.lejepa:Lejepa",
    spec=LejepaSpec,
    headline=knn_accuracy,
    reports=("loss", "invariance", "sigreg", "spread"),
    recorded=("knn_accuracy",),
    uses_labels=False,
)
