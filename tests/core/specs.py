"""Small complete specs and models for the tests of the core."""

from typing import Any

import torch
from torch import nn

from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec, TrainSpec, VitSpec, model_spec

BASE = VitSpec(
    img_size=(16, 16), in_chans=3, num_classes=5, patch_size=4, embed_dim=24, depth=2, num_heads=3
)

_STAGED: dict[str, Any] = {"depth": 6, "depths": (1, 2)}
_CONVENTIONAL: dict[str, Any] = {"pool": "mean", "pos_embed": "relative"}
REQUIRED: dict[str, dict[str, Any]] = {
    "vit": {},
    "resnet18": {},
    "convnet": {"widths": (8, 16)},
    "swin": _STAGED | _CONVENTIONAL | {"depths": (2, 2), "window_size": 2},
    "coatnet": _STAGED | _CONVENTIONAL | {"layout": "CT"},
    "pit": _STAGED,
    "timm": {"name": "test_resnet"},
}
"""Fields that a family requires in addition to sizes and the fields of a ViT."""


def changed(**fields: Any) -> Any:
    return model_spec(**(BASE.model_dump() | fields))


def build(**fields: Any) -> VisionTransformer:
    """Return a float64 model in eval mode, with noise on all weights."""
    return noisy(build_vit(changed(**fields)).double().eval())


def noisy(model: Any, share: float = 0.3) -> Any:
    """Return the model with noise on all weights, as zero heads and biases hide differences."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(share * torch.randn_like(parameter))
    return model


def small(family: str, **fields: Any) -> Any:
    """Return the spec of a family for images of 16x16 pixels, with the fields that it needs."""
    sizes = {"img_size": (16, 16), "in_chans": 3, "num_classes": 5}
    return model_spec(family=family, **(sizes | REQUIRED[family] | fields))


def pictures(count: int = 2, size: tuple[int, int] = (16, 16)) -> torch.Tensor:
    return torch.randn(count, 3, *size, dtype=torch.float64)


def classify(model: nn.Module, smoothing: float = 0.0) -> Classify:
    return Classify(ExperimentSpec(train=TrainSpec(label_smoothing=smoothing)), model)
