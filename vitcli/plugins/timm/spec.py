"""The spec of the model family ``timm``."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from vitcli.core.spec import ModelSpec
from vitcli.core.spec.families import FamilyRow

MISSING = "models of timm need the package timm; in the checkout, type: pip install '.[timm]'"


class TimmSpec(ModelSpec):
    """A model of timm, as timm builds it. It needs the extra ``timm``."""

    family: Literal["timm"] = "timm"
    name: str | None = None
    """Name of the model in timm, also with a tag, such as vit_small_patch14_dinov2.lvd142m. There
    is no default: it must be set."""
    pretrained: bool = False
    """Start from timm's published weights, with the size and the normalisation of the pictures that
    timm states for them, unless ``data`` sets others. ``train.init`` takes other weights."""

    min_batch: ClassVar[int] = 2

    @property
    def is_pretrained(self) -> bool:
        return self.pretrained

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not self.name:
            raise ValueError("family 'timm' needs name, such as vit_small_patch14_dinov2.lvd142m")
        return self


ROW = FamilyRow(
    about="a model of timm by its name (Wightman 2019)",
    build="vitcli.plugins.timm.model:TimmModel",
    spec=TimmSpec,
    small={"name": "test_resnet"},
    fit="vitcli.plugins.timm.fit:fit_to_timm",
    weights="vitcli.plugins.timm.model:WEIGHTS",
)
