"""Judge: the metadata of torchvision's weights. It decides numbers of parameters and operations.

Convention: both count matrix products, convolutions and attention, and no element-wise work.
torchvision's ``_ops`` are 10^9 multiply-adds; vitcli counts two operations for each.
"""

from typing import Any

import pytest
import torch
from torchvision.models import get_model_weights

from tests.core.models.published import IMAGENET, swin
from tests.judges.conftest import Judge
from vitcli.core.inspect.cost import count_parameters, forward_flops
from vitcli.core.models.image_model import build_model
from vitcli.core.spec import ModelSpec, model_spec

JUDGE = Judge("torchvision", "BSD-3-Clause", "parameters and operations", "torchvision")
pytestmark = pytest.mark.judge


def vit(patch_size: int, width: int, depth: int, heads: int) -> ModelSpec:
    fields = IMAGENET | {"pos_embed": "learned", "pos_embed_prefix": True, "pool": "cls"}
    sizes = {"patch_size": patch_size, "embed_dim": width, "depth": depth, "num_heads": heads}
    return model_spec(**(fields | sizes), mlp_ratio=4.0)


def sizes(spec: Any) -> tuple[int, float]:
    """Return the parameters, and the multiply-adds of the forward pass of one image in 10^9.

    For its last block, a ViT that classifies CLS computes only what CLS reads. The judges compute
    attention, projection and FFN of the patches as well; here they are added.
    """
    with torch.device("meta"):
        model: Any = build_model(spec)
    unread = 0
    if spec.family == "vit":
        width, patches = spec.embed_dim, model.grid_size[0] * model.grid_size[1]
        unread = patches * (9 * width**2 + 2 * (patches + 1) * width)
    return count_parameters(model), (forward_flops(model, (3, 224, 224)) / 2 + unread) / 1e9


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("vit_b_16", vit(16, 768, 12, 12)),
        ("vit_b_32", vit(32, 768, 12, 12)),
        ("vit_l_16", vit(16, 1024, 24, 16)),
        ("swin_t", swin(96, 3, 6)),
        ("swin_s", swin(96, 3, 18)),
        ("swin_b", swin(128, 4, 18)),
    ],
)
def test_sizes_are_those_of_torchvision(agree, name, spec):
    (parameters, operations), meta = sizes(spec), get_model_weights(name).IMAGENET1K_V1.meta
    agree(f"{name}: parameters", parameters, meta["num_params"], within=0)
    agree(f"{name}: 10^9 multiply-adds", operations, meta["_ops"], within=1e-4)
