"""The spec of a teacher: a trained model whose outputs a task reads."""

from typing import Annotated, ClassVar

from pydantic import Field

from vitcli.core.spec.base import AcceptsList, Channels, Spec
from vitcli.core.spec.families import FAMILY
from vitcli.core.spec.model import ModelSpec


class TeacherSpec(Spec):
    """A trained model whose outputs another model imitates. vitcli fills in all but ``run``."""

    derived: ClassVar = ("model", "class_names", "mean", "std")
    """Fields that follow from the weights, so that comparisons leave them out."""

    run: str = ""
    """Run or bundled model whose last weights teach, with the average of weights if it has one."""
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    """SHA-256 of the teacher's weights. A training with other weights is refused."""
    model: Annotated[ModelSpec, FAMILY] | None = None
    """Architecture of the teacher; until it is known, that of the student."""
    class_names: Annotated[tuple[str, ...], AcceptsList] | None = None
    """Names of the teacher's classes; empty if it was not trained to classify."""
    mean: Channels | None = None
    """Mean of each channel of the images that the teacher was trained on."""
    std: Channels | None = None
    """Standard deviation of each channel of these images."""
