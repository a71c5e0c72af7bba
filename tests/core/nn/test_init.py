"""Initial weights have the statistics of their schemes."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tests.core.specs import REQUIRED, changed, small
from vitcli.core.models.image_model import build_model
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.pos_embed import sincos2d
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec.slots import INITS, SLOTS

WIDE = {"embed_dim": 192, "depth": 1, "num_heads": 3}


def make(init: str, **fields) -> VisionTransformer:
    return build_vit(changed(**WIDE, init=init, **fields), seed=0)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize(
    ("ffn", "patch_embed"),
    [
        ("swiglu", "conv_stem"),
        ("depthwise", "shifted"),
        ("gelu", "conv_tokenizer"),
        ("relu", "whitened_stages"),
        ("gelu", "conv"),
    ],
)
def test_biases_start_at_zero_norms_at_one_and_the_head_is_alive(init, ffn, patch_embed):
    model = make(init, reg_tokens=2, ffn=ffn, patch_embed=patch_embed)
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and module.bias is not None:
            assert module.bias.abs().max() == 0
            assert module.weight.abs().max() > 0
        if isinstance(module, nn.LayerNorm):
            assert_close(module.weight, torch.ones_like(module.weight))
    for tokens in (model.cls_token, model.reg_tokens):
        assert 0.01 < tokens.std() < 0.03


@pytest.mark.parametrize("init", INITS)
def test_a_convolution_of_patches_starts_like_the_linear_layer(init):
    """Otherwise an ablation of ``patch_embed`` would compare initial weights too."""
    linear, conv = (make(init, patch_embed=name) for name in ("linear", "conv"))
    assert conv.patch_embed[0].proj.weight.ndim == 4
    for one, other in zip(linear.parameters(), conv.parameters(), strict=True):
        assert one.equal(other.view_as(one))


def test_xavier_has_variance_two_over_fan_in_plus_fan_out_of_one_group():
    model = make("xavier_normal")
    block = model.blocks[0]
    fc1 = block.ffn.inner.fc1.weight
    assert fc1.var().item() == pytest.approx(2 / (192 + 768), rel=0.05)
    for part in block.attn.inner.qkv.weight.chunk(3):
        assert part.var().item() == pytest.approx(1 / 192, rel=0.05)
    sizes = {"embed_dim": 240, "patch_size": 2, "init": "xavier_normal"}
    pit = build_model(changed(family="pit", **sizes, **REQUIRED["pit"]))
    (conv,) = [m for m in pit.modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    n_in, n_out = 9, 9 * conv.out_channels / conv.groups
    assert conv.weight.std().item() == pytest.approx((2 / (n_in + n_out)) ** 0.5, rel=0.05)
    assert conv.weight.mean().abs() < 0.02


def products(init: str) -> list[float]:
    """Return the similarity of W_q^T W_k (sum over heads) and W_v^T W_proj^T to the identity."""
    attn = make(init).blocks[0].attn.inner
    q, k, v = attn.qkv.weight.detach().chunk(3)
    scores, values = q.T @ k, v.T @ attn.proj.weight.detach().T
    return [(m.diagonal().mean() / m.square().mean().sqrt()).item() for m in (scores, values)]


def test_mimetic_products_resemble_plus_and_minus_identity_and_positions_are_sines():
    scores, values = products("mimetic")
    assert scores > 3
    assert values < -3
    assert all(abs(value) < 1 for value in products("trunc_normal"))
    model = make("mimetic", pos_embed_prefix=True)
    assert_close(model.pos_embed.table[0, 1:].detach(), sincos2d((4, 4), 192))


STARTS = [
    *({"init": init, "patch_embed": row} for init in INITS for row in SLOTS["patch_embed"]),
    *({"attention": row} for row in SLOTS["attention"]),
    *({"family": family} | REQUIRED[family] for family in ("swin", "coatnet", "pit")),
]
PLAIN = ("resnet18", "convnet")
SPECS = [*(changed(**fields) for fields in STARTS), *map(small, PLAIN)]


@pytest.mark.parametrize("spec", SPECS, ids=[*map(str, STARTS), *PLAIN])
def test_every_random_tensor_has_its_own_generator(spec):
    model = build_model(spec, seed=4)
    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    asked = []

    def draws(name: str) -> torch.Generator:
        asked.append(name)
        return keyed_generator("init", 5, name)

    model.init_weights(draws)
    tensors = model.state_dict()
    moved = {name for name, tensor in tensors.items() if not tensor.equal(first[name])}
    assert moved <= set(asked) <= tensors.keys()
    torch.rand(3)  # the global generator has no effect
    for name, tensor in build_model(model.spec, seed=4).state_dict().items():
        assert tensor.equal(first[name]), name
