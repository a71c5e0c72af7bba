"""Published configurations with their published sizes, for the tests and docs/results."""

from typing import Any, NamedTuple

import torch

from vitcli.core.inspect.cost import count_parameters
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import ModelSpec, model_spec


class Published(NamedTuple):
    spec: ModelSpec
    parameters: float
    """As published."""
    tolerance: float
    """Maximum relative difference: half of the last printed digit, or a larger explicit limit."""
    source: str


def parameters_of(spec: ModelSpec) -> int:
    with torch.device("meta"):
        return count_parameters(build_model(spec))


def cct(layers: int, dim: int, heads: int, ratio: float, convolutions: int) -> ModelSpec:
    images = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}
    sizes = {"embed_dim": dim, "depth": layers, "num_heads": heads, "mlp_ratio": ratio}
    stem = {"patch_size": 2**convolutions, "stem_width": 64 if convolutions > 1 else None}
    parts = {"patch_embed": "conv_tokenizer", "patch_bias": False, "qkv_bias": False, "pool": "seq"}
    return model_spec(**images, **sizes, **stem, **parts)


IMAGENET: dict[str, Any] = {"img_size": (224, 224), "in_chans": 3, "num_classes": 1000}
IMAGENET |= {"pos_embed": "relative", "pool": "mean"}


def swin(width: int, heads: int, third: int) -> ModelSpec:
    sizes = {"embed_dim": width, "depths": (2, 2, third, 2), "num_heads": heads, "window_size": 7}
    return model_spec(family="swin", patch_embed="conv", patch_post_norm=True, **IMAGENET, **sizes)


def coatnet(stem: int, width: int, depths: tuple[int, int, int, int]) -> ModelSpec:
    sizes = {"embed_dim": width, "stem_width": stem, "depths": depths, "num_heads": width // 32}
    return model_spec(family="coatnet", **IMAGENET, **sizes)


CCT, SWIN, COATNET = "Hassani et al. 2021", "Liu et al. 2021, as in torchvision", "Dai et al. 2021"
SINES = cct(6, 256, 4, 2, 1).replace(pos_embed="sincos1d")
"""The published 3.168 M is the count without learned positions, which have 65,536 parameters."""
PUBLISHED = {
    "cct-2/3x2": Published(cct(2, 128, 2, 1, 2), 0.284e6, 0.0018, CCT),
    "cct-4/3x2": Published(cct(4, 128, 2, 1, 2), 0.482e6, 0.0011, CCT),
    "cct-6/3x1": Published(SINES, 3.168e6, 0.0002, CCT),
    "cct-6/3x2": Published(cct(6, 256, 4, 2, 2), 3.327e6, 0.0002, CCT),
    "cct-7/3x1": Published(cct(7, 256, 4, 2, 1), 3.76e6, 0.0002, CCT),
    "cct-7/3x2": Published(cct(7, 256, 4, 2, 2), 3.853e6, 0.0002, CCT),
    "swin-t": Published(swin(96, 3, 6), 28_288_354, 0, SWIN),
    "swin-s": Published(swin(96, 3, 18), 49_606_258, 0, SWIN),
    "swin-b": Published(swin(128, 4, 18), 87_768_224, 0, SWIN),
    "coatnet-0": Published(coatnet(64, 96, (2, 3, 5, 2)), 25e6, 0.025, COATNET),
    "coatnet-1": Published(coatnet(64, 96, (2, 6, 14, 2)), 42e6, 0.025, COATNET),
    "coatnet-2": Published(coatnet(128, 128, (2, 6, 14, 2)), 75e6, 0.025, COATNET),
}
