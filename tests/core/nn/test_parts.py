"""Patches, FFNs, norms, branches and pools: properties, with negative controls."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from tests.core.specs import build, changed, pictures
from vitcli.core.make import make
from vitcli.core.models.layers import build_patch_embed
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.block import DropPath, LayerScale
from vitcli.core.spec.slots import FFNS, NORMS, POOLS

SHAPE = TokenShape(embed_dim=24, grid_size=(4, 4), num_prefix_tokens=2)


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
@pytest.mark.parametrize("size", [(16, 16), (16, 32)])
def test_a_convolution_of_patches_equals_a_linear_layer(patch_size, size):
    linear, conv = (
        build_patch_embed(changed(patch_size=patch_size, patch_embed=name, img_size=size)).double()
        for name in ("linear", "conv")
    )
    with torch.no_grad():
        conv[0].proj.weight.copy_(linear[0].proj.weight.view_as(conv[0].proj.weight))
        conv[0].proj.bias.copy_(linear[0].proj.bias)
    images = pictures(size=size)
    assert_close(linear(images), conv(images))
    with torch.no_grad():
        conv[0].proj.weight.copy_(conv[0].proj.weight.mT.clone())
    assert not torch.allclose(linear(images), conv(images))


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["conv_stem", "conv_tokenizer"])
def test_a_stem_has_the_grid_size_and_overlaps_patches(name, patch_size):
    spec = changed(patch_size=patch_size, patch_embed=name)
    stem = build_patch_embed(spec).double().eval()
    images = pictures()
    assert not torch.allclose(stem(images) + stem(-images), 2 * stem(0 * images))  # not linear
    side = 16 // patch_size
    assert stem(images).shape == (2, side * side, 24)
    if patch_size < 16:
        moved = images.clone()
        moved[:, :, patch_size - 1] += 1  # the last row of the patches above
        assert not torch.allclose(stem(moved)[:, side], stem(images)[:, side])


def test_the_tokenizer_equals_convolution_relu_and_overlapping_pooling():
    embed = build_patch_embed(changed(patch_size=2, patch_embed="conv_tokenizer")).double()
    images = pictures()
    conv = embed[0].stem[0]
    by_hand = F.conv2d(images, conv.weight, conv.bias, padding=1).clamp(min=0)
    windows = F.pad(by_hand, (1, 1, 1, 1), value=-1).unfold(2, 3, 2).unfold(3, 3, 2)
    assert_close(embed(images), windows.amax((-2, -1)).flatten(2).mT)


@pytest.mark.parametrize("patch_size", [1, 3])
@pytest.mark.parametrize("name", ["conv_stem", "conv_tokenizer"])
def test_a_stem_refuses_a_patch_size_that_is_no_power_of_2(name, patch_size):
    with pytest.raises(ValueError, match=f"{name} needs a patch_size of 2, 4, 8"):
        build_vit(changed(patch_embed=name, patch_size=patch_size, img_size=(12, 12)))


def test_patch_norms_remove_brightness_and_contrast():
    def tokens(images: torch.Tensor, **fields) -> torch.Tensor:
        torch.manual_seed(1)
        return build_patch_embed(changed(**fields)).double()(images)

    images = pictures()
    assert_close(
        tokens(images, patch_pre_norm=True),
        tokens(7 * images + 3, patch_pre_norm=True), atol=1e-4, rtol=1e-4,
    )  # fmt: skip
    assert not torch.allclose(tokens(images), tokens(7 * images + 3))
    post = tokens(images, patch_post_norm=True)
    assert_close(post.mean(-1), torch.zeros_like(post[..., 0]))


def test_the_ffns_equal_their_equations():
    x = torch.randn(4, 24, dtype=torch.float64)
    for name, act in (("gelu", nn.functional.gelu), ("relu", nn.functional.relu)):
        ffn = make(FFNS[name], SHAPE, hidden_dim=10).double().eval()
        assert_close(ffn(x), ffn.fc2(act(ffn.fc1(x))))
    ffn = make(FFNS["swiglu"], SHAPE, hidden_dim=10).double().eval()
    gate, value = ffn.fc1.weight.chunk(2)
    gate_bias, value_bias = ffn.fc1.bias.chunk(2)
    hidden = nn.functional.silu(x @ gate.T + gate_bias) * (x @ value.T + value_bias)
    assert_close(ffn(x), hidden @ ffn.fc2.weight.T + ffn.fc2.bias)


@pytest.mark.parametrize("name", [name for name, row in FFNS.items() if row.build])
def test_an_ffn_drops_after_the_activation_and_after_the_second_layer(name):
    x = torch.randn(2, 18, 24, dtype=torch.float64)
    ffn = make(FFNS[name], SHAPE, hidden_dim=96, dropout=0.5).double()
    calm, dropped = ffn.eval()(x), ffn.train()(x)
    assert 0.4 < (dropped == 0).double().mean() < 0.6
    ffn.drop2.p = 0.0
    inside = ffn(x)
    assert (inside != 0).all()
    assert not torch.allclose(inside, calm)
    ffn.drop1.p = 0.0
    assert_close(ffn(x), calm)


def test_pos_drop_drops_embedded_tokens():
    model = build(pos_drop=0.5)
    calm, dropped = model.embed(pictures()), model.train().embed(pictures())
    assert calm.count_nonzero() == calm.numel()
    assert 0.4 < (dropped == 0).double().mean() < 0.6


@pytest.mark.parametrize(
    ("name", "over", "centred"),
    [("layer_norm", (-1,), True), ("rms_norm", (-1,), False), ("batch_norm", (0, 1), True)],
)
def test_the_norms_equal_their_equations(name, over, centred):
    x, eps = 2 + torch.randn(4, 5, 24, dtype=torch.float64), 0.5
    centre = x - x.mean(over, keepdim=True) if centred else x
    expected = centre / (centre.square().mean(over, keepdim=True) + eps).sqrt()
    assert_close(make(NORMS[name], 24, eps=eps).double()(x), expected)


def test_batch_norm_evaluates_with_running_statistics():
    norm = make(NORMS["batch_norm"], 24, eps=1e-6).double()
    for _ in range(80):
        norm(3 + 2 * torch.randn(16, 5, 24, dtype=torch.float64))
    norm.eval()
    x = 3 + 2 * torch.randn(400, 5, 24, dtype=torch.float64)
    assert norm(x).mean().abs() < 0.05
    assert_close(norm(x)[:1], norm(x[:1]))


def test_drop_path_drops_whole_samples_and_keeps_the_expectation():
    drop, x = DropPath(0.25), torch.ones(40_000, 2, 3)
    out = drop(x)
    per_sample = out.flatten(1)
    assert_close(per_sample, per_sample[:, :1].expand_as(per_sample))
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert_close(drop.eval()(x), x)


def test_drop_path_grows_with_depth():
    model = build(depth=5, drop_path=0.2)
    rates = [block.attn.after[-1].rate for block in model.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_layer_scale_scales_each_feature():
    scale, x = LayerScale(3, 1e-2), torch.randn(2, 4, 3)
    assert_close(scale(x), 0.01 * x)
    small, none = build_vit(changed(layer_scale_init=1e-9)), build_vit(changed(depth=0))
    none.load_state_dict(small.state_dict(), strict=False)
    images = pictures().float()
    assert_close(small(images), none(images))


def test_pools_equal_their_equations():
    tokens = torch.randn(2, 18, 24, dtype=torch.float64)
    assert_close(make(POOLS["cls"], SHAPE)(tokens), tokens[:, 0])
    assert_close(make(POOLS["mean"], SHAPE)(tokens), tokens[:, 2:].mean(1))
    pool = make(POOLS["seq"], SHAPE).double()
    moved = tokens.clone()
    moved[:, :2] += 1
    assert_close(pool(moved), pool(tokens))
    with torch.no_grad():
        pool.score.weight.zero_()
    assert_close(pool(tokens), tokens[:, 2:].mean(1))
    with torch.no_grad():
        pool.score.weight.copy_(1000 * tokens[:1, 5] / tokens[0, 5].norm() ** 2)
    hardest = tokens[0, 2:][(tokens[0, 2:] @ tokens[0, 5]).argmax()]
    assert_close(pool(tokens)[0], hardest, atol=1e-3, rtol=1e-3)
