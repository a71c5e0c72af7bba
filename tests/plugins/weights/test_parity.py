"""With copied weights, models compute the same logits as timm and torchvision."""

from functools import partial

import pytest
import timm
import torch
from torch import nn
from torch.testing import assert_close

from tests.core.specs import changed, noisy
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.attention import SelfAttention
from vitcli.plugins.weights.tensors import match_tensors

scramble = partial(noisy, share=0.2)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"patch_size": 2, "embed_dim": 32, "num_heads": 4, "depth": 3}, {}),
        ({"img_size": (16, 32), "patch_size": 8}, {}),
        ({"qkv_bias": False, "mlp_ratio": 2.0}, {"qkv_bias": False, "mlp_ratio": 2.0}),
        ({"reg_tokens": 2}, {"reg_tokens": 2}),
        ({"layer_scale_init": 0.3}, {"init_values": 0.3}),
        ({"patch_embed": "conv"}, {}),
        ({"norm": "rms_norm"}, {"norm_layer": partial(timm.layers.RmsNorm, eps=1e-6)}),
        ({"norm_eps": 1e-3}, {"norm_layer": partial(nn.LayerNorm, eps=1e-3)}),
        ({"ffn": "relu"}, {"act_layer": nn.ReLU}),
        (
            {"ffn": "swiglu", "mlp_ratio": 2.0},
            {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU},
        ),
        ({"final_norm": False}, {"final_norm": False}),
        ({"pre_norm": True, "patch_bias": False}, {"pre_norm": True}),
        ({"pos_embed": "none"}, {"pos_embed": "none"}),
        ({"pool": "mean"}, {"global_pool": "avg", "class_token": False, "fc_norm": False}),
        ({"pos_embed_prefix": False}, {"no_embed_class": True}),
    ],
    ids=str,
)
def test_logits_equal_timm(fields, options):
    spec = changed(**({"pos_embed_prefix": True} | fields))
    names = ("img_size", "patch_size", "num_classes", "embed_dim", "depth", "num_heads")
    sizes = {name: getattr(spec, name) for name in names}
    theirs = timm.models.VisionTransformer(**sizes, **options)
    scramble(theirs).eval()
    ours = build_vit(spec).eval()
    ours.load_state_dict(match_tensors(theirs.state_dict(), ours, "theirs", print))
    images = torch.randn(3, 3, *spec.img_size)
    for fused in (True, False):
        for module in ours.modules():
            if isinstance(module, SelfAttention):
                module.attend.fused = fused
        assert_close(ours(images), theirs(images), atol=1e-5, rtol=1e-5)
    assert theirs(images).abs().max() > 1e-2
