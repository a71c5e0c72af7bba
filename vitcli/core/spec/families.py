"""The table of model families, and one spec class with the fields of each family."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, model_validator

from vitcli.core.spec.model import AttentionSpec, GridSpec, ModelSpec, PatchSpec, StagedSpec
from vitcli.core.spec.rows import AcceptsList, SpecOf, SpecRow, Width
from vitcli.core.spec.slots import ATTENTIONS, FFNS, POS_EMBEDS
from vitcli.plugin import Registry, Target

DEFAULT_FAMILY = "vit"


class VitSpec(AttentionSpec, PatchSpec):
    """Vision Transformer."""

    family: Literal["vit"] = "vit"
    depth: int = Field(6, ge=0, le=256)
    """Number of transformer blocks; 0 feeds the embedded tokens to the head."""
    mlp_dim: int | None = Field(None, ge=1, le=65536)
    """Hidden width of the feed-forward network; unset uses ``mlp_ratio`` times ``embed_dim``."""
    pre_norm: bool = False
    """Normalisation of the embedded tokens before the first block, as in CLIP."""

    @property
    def hidden_dim(self) -> int:
        return self.mlp_dim or super().hidden_dim

    @property
    def has_block_matrices(self) -> bool:
        return self.depth > 0

    @property
    def no_other_grid(self) -> str | None:
        if ATTENTIONS[self.attention].needs_grid:
            return f"attention {self.attention!r} needs all patches of the grid"
        if FFNS[self.ffn].needs_grid:
            return f"ffn {self.ffn!r} needs all patches of the grid"
        if POS_EMBEDS[self.pos_embed].heads:
            return f"pos_embed {self.pos_embed!r} needs all patches of the grid"
        return None


class ResNet18Spec(ModelSpec):
    """ResNet-18 for small images. Only image size, channels and number of classes can be set."""

    family: Literal["resnet18"] = "resnet18"
    has_blocks: ClassVar[bool] = False
    is_convolutional: ClassVar[bool] = True
    min_batch: ClassVar[int] = 2


class ConvnetSpec(ModelSpec):
    """A small convolutional network that trains fast."""

    family: Literal["convnet"] = "convnet"
    widths: Annotated[tuple[Width, ...], Field(min_length=1), AcceptsList] = (64, 256, 256)
    """Number of channels in each stage. Each stage halves the sides of the image."""

    has_blocks: ClassVar[bool] = False
    is_convolutional: ClassVar[bool] = True
    min_batch: ClassVar[int] = 2

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        least = 2 ** len(self.widths) + 1
        if self.img_size and min(self.img_size) < least:
            raise ValueError(
                f"{len(self.widths)} widths need images of {least}x{least} pixels or more"
            )
        return self


class SwinSpec(GridSpec, PatchSpec):
    """Swin: a model in stages with attention inside shifted windows."""

    family: Literal["swin"] = "swin"
    window_size: int = Field(4, ge=1, le=64)
    """Side of an attention window in patches, at most the side of the grid."""


class CoatnetSpec(GridSpec):
    """CoAtNet: convolutional stages, followed by attention stages."""

    family: Literal["coatnet"] = "coatnet"
    is_convolutional: ClassVar[bool] = True
    layout: str = "CCTT"
    """Kind of each stage: C for convolutions, T for attention, all C before all T. The fields of
    heads, FFN, positions, dropout, LayerScale and norm apply to T stages only."""
    stem_width: int | None = Field(None, ge=1, le=8192)
    """Channels of the stem; unset uses ``embed_dim``."""

    @model_validator(mode="after")
    def _check_layout(self) -> Self:
        if not re.fullmatch("C*T+", self.layout):
            raise ValueError(
                f"layout {self.layout!r} must be Cs (convolutions), then Ts (attention), as in CCTT"
            )
        if self.depths is not None and len(self.layout) != len(self.depths):
            raise ValueError(
                f"layout {self.layout!r} must name {len(self.depths)} stages, as many as depths"
            )
        if self.patch_size not in (1, 2, 4):
            raise ValueError(f"family 'coatnet' needs patch_size 1, 2 or 4, got {self.patch_size}")
        return self


class PitSpec(AttentionSpec, StagedSpec, PatchSpec):
    """PiT: a Vision Transformer in stages, with pooling of tokens between stages."""

    family: Literal["pit"] = "pit"


@dataclass(frozen=True, kw_only=True)
class FamilyRow(SpecRow):
    """A family of models. ``build`` takes the spec."""

    spec: type[ModelSpec]
    small: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a small model for 32x32 pixels, as far as they differ from the defaults."""
    fit: Target | None = None
    """Function that takes an experiment and returns it with what the family states for its data. It
    may refuse a training with a ``ConfigError``."""
    weights: Target | None = None
    """A ``runner.evaluate.weights.PublishedWeights``, if the family has some. ``FAMILY:NAME`` then
    is a model of the family, whose spec has the fields ``name`` and ``pretrained``."""


SMALL = {"mlp_ratio": 2.0, "pool": "mean", "init": "xavier_normal"}
SMALL_STAGES = SMALL | {"patch_size": 2}
MODELS = "vitcli.core.models"
FAMILIES = Registry[FamilyRow]("model.family")
FAMILIES |= {
    "vit": FamilyRow(
        about="Vision Transformer (Dosovitskiy et al. 2021)",
        build=f"{MODELS}.vit:VisionTransformer",
        spec=VitSpec,
        small=SMALL | {"embed_dim": 96, "depth": 4, "num_heads": 3, "pos_embed": "sincos2d"},
    ),
    "resnet18": FamilyRow(
        about="ResNet-18 with a stem for small images (He et al. 2016)",
        build=f"{MODELS}.resnet:ResNet18",
        spec=ResNet18Spec,
    ),
    "convnet": FamilyRow(
        about="a small convolutional network that trains fast (Jordan 2024)",
        build=f"{MODELS}.convnet:ConvNet",
        spec=ConvnetSpec,
        small={"widths": [16, 32, 32]},
    ),
    "swin": FamilyRow(
        about="attention inside shifted windows, in stages (Liu et al. 2021)",
        build=f"{MODELS}.swin:Swin",
        spec=SwinSpec,
        small=SMALL_STAGES
        | {
            "patch_embed": "conv",
            "patch_post_norm": True,
            "embed_dim": 48,
            "num_heads": 3,
            "depths": [2, 4],
            "pos_embed": "relative",
        },
    ),
    "coatnet": FamilyRow(
        about="convolutions, then attention, in stages (Dai et al. 2021)",
        build=f"{MODELS}.coatnet:CoAtNet",
        spec=CoatnetSpec,
        small=SMALL_STAGES
        | {
            "stem_width": 16,
            "embed_dim": 24,
            "depths": [1, 4, 3],
            "layout": "CTT",
            "num_heads": 1,
            "pos_embed": "relative",
        },
    ),
    "pit": FamilyRow(
        about="a Vision Transformer that pools between stages (Heo et al. 2021)",
        build=f"{MODELS}.pit:Pit",
        spec=PitSpec,
        small=SMALL_STAGES | {"embed_dim": 48, "num_heads": 3, "depths": [2, 4], "pool": "cls"},
    ),
}

DEFAULTS: dict[str, Any] = {
    name: field.default
    for row in FAMILIES.built_in.values()
    for name, field in row.spec.model_fields.items()
}
"""Default values of the fields of all built-in families. Complete configurations of 0.7.0 have them
all."""


def drop_foreign_fields(spec: type[BaseModel], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without fields of other built-in families that have their defaults."""
    foreign = [name for name in fields if name in DEFAULTS.keys() - spec.model_fields.keys()]
    family = spec.model_fields["family"].default
    for name in foreign:
        default = DEFAULTS[name]
        if fields[name] != default:
            hint = "leave it out" + ("" if default is None else f" or set it to {default}")
            raise ValueError(f"family {family!r} has no {name}; {hint}")
    return {name: value for name, value in fields.items() if name not in foreign}


FAMILY = SpecOf(FAMILIES, "family", DEFAULT_FAMILY, drop_foreign_fields)
"""Annotation of the field that holds the model of an experiment."""


def model_spec(**fields: Any) -> ModelSpec:
    """Return the spec of the family ``family``, by default of a Vision Transformer."""
    spec = FAMILY.choose(fields)
    assert isinstance(spec, ModelSpec)
    return spec
