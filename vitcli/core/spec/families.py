"""The families of models: one table, and for each family a spec with its own fields."""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from vitcli.core.spec.model import AttentionSpec, GridSpec, ModelSpec, PatchSpec, StagedSpec
from vitcli.core.spec.rows import SpecRow

DEFAULT_FAMILY = "vit"


class VitSpec(AttentionSpec, PatchSpec):
    """Vision Transformer."""

    family: Literal["vit"] = "vit"
    depth: int = Field(6, ge=0, le=256)
    """Number of transformer blocks."""
    mlp_dim: int | None = Field(None, ge=1, le=65536)
    """Hidden width of the feed-forward network; overrides ``mlp_ratio``."""

    @property
    def hidden_dim(self) -> int:
        return self.mlp_dim or super().hidden_dim

    @property
    def has_block_matrices(self) -> bool:
        return self.depth > 0


class ResNet18Spec(ModelSpec):
    """ResNet-18 for small images; it has no fields but sizes."""

    family: Literal["resnet18"] = "resnet18"
    has_blocks: ClassVar[bool] = False
    is_convolutional: ClassVar[bool] = True
    min_batch: ClassVar[int] = 2


class SwinSpec(GridSpec, PatchSpec):
    """Swin: attention inside shifted windows."""

    family: Literal["swin"] = "swin"
    window_size: int = Field(4, ge=1, le=64)
    """Side of a window in patches."""


class CoatnetSpec(GridSpec):
    """CoAtNet: stages of convolutions, then stages of attention."""

    family: Literal["coatnet"] = "coatnet"
    is_convolutional: ClassVar[bool] = True
    layout: str = "CCTT"
    """Stages: convolutions (C), then attention (T), which alone has heads and FFN, positions,
    dropout, LayerScale and a choice of norm."""
    stem_width: int | None = Field(None, ge=1, le=8192)
    """Channels of the stem; ``embed_dim`` unless set."""

    @model_validator(mode="after")
    def _layout_fits(self) -> Self:
        if not re.fullmatch("C*T+", self.layout):
            raise ValueError(f"layout {self.layout!r}: C for convolutions, then T: CCTT, or CTT")
        if self.depths is not None and len(self.layout) != len(self.depths):
            raise ValueError(f"layout {self.layout} does not name {len(self.depths)} stages")
        if self.patch_size not in (1, 2, 4):
            raise ValueError(f"family 'coatnet' wants patch_size 1, 2 or 4, not {self.patch_size}")
        return self


class PitSpec(AttentionSpec, StagedSpec, PatchSpec):
    """PiT: a Vision Transformer that pools between stages."""

    family: Literal["pit"] = "pit"


@dataclass(frozen=True, kw_only=True)
class FamilyRow(SpecRow):
    """A family of models; ``build`` takes the spec."""

    spec: type[ModelSpec]


MODELS = "vitcli.core.models"
FAMILIES: dict[str, FamilyRow] = {
    "vit": FamilyRow(
        about="Vision Transformer (Dosovitskiy et al. 2021)",
        build=f"{MODELS}.vit:VisionTransformer",
        spec=VitSpec,
    ),
    "resnet18": FamilyRow(
        about="ResNet-18 with a stem for small images (He et al. 2016)",
        build=f"{MODELS}.resnet:ResNet18",
        spec=ResNet18Spec,
    ),
    "swin": FamilyRow(
        about="attention inside shifted windows, in stages (Liu et al. 2021)",
        build=f"{MODELS}.swin:Swin",
        spec=SwinSpec,
    ),
    "coatnet": FamilyRow(
        about="convolutions, then attention, in stages (Dai et al. 2021)",
        build=f"{MODELS}.coatnet:CoAtNet",
        spec=CoatnetSpec,
    ),
    "pit": FamilyRow(
        about="a Vision Transformer that pools between stages (Heo et al. 2021)",
        build=f"{MODELS}.pit:Pit",
        spec=PitSpec,
    ),
}
