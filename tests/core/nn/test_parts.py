"""Patches, FFNs, norms, branches, pools and positions, and layers of one's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.functional import fold, unfold
from torch.testing import assert_close

from tests.core.specs import build, changed, pictures
from vitcli.core.models.layers import build_patch_embed
from vitcli.core.models.vit import build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.block import DropPath
from vitcli.core.nn.pos_embed import RelativeBias, Rope2d, sincos, sincos2d
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import FFNS, NORMS, POOLS, POS_EMBEDS

SHAPE = TokenShape(embed_dim=24, grid_size=(4, 4), num_prefix_tokens=2)


@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["conv_stem", "conv_tokenizer", "whitened_stages"])
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
@pytest.mark.parametrize("name", ["conv_stem", "conv_tokenizer", "whitened_stages"])
def test_a_stem_refuses_a_patch_size_that_is_no_power_of_2(name, patch_size):
    with pytest.raises(ValueError, match=f"{name} needs a patch_size of 2, 4, 8"):
        build_vit(changed(patch_embed=name, patch_size=patch_size, img_size=(12, 12)))


def test_patch_norms_remove_brightness_and_contrast():
    def tokens(images: torch.Tensor, **fields) -> torch.Tensor:
        torch.manual_seed(1)
        return build_patch_embed(changed(**fields)).double()(images)

    images = pictures()
    before, after = (tokens(each, patch_pre_norm=True) for each in (images, 7 * images + 3))
    assert_close(before, after, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(tokens(images), tokens(7 * images + 3))
    post = tokens(images, patch_post_norm=True)
    assert_close(post.mean(-1), torch.zeros_like(post[..., 0]))


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


def test_batch_norm_is_over_images_and_tokens():
    """The other norms are compared with timm's."""
    x, eps = 2 + torch.randn(4, 5, 24, dtype=torch.float64), 0.5
    centre = x - x.mean((0, 1))
    expected = centre / (centre.square().mean((0, 1)) + eps).sqrt()
    assert_close(make(NORMS["batch_norm"], 24, eps=eps).double()(x), expected)


def test_drop_path_drops_whole_samples_keeps_the_expectation_and_grows_with_depth():
    drop, x = DropPath(0.25), torch.ones(40_000, 2, 3)
    out = drop(x)
    per_sample = out.flatten(1)
    assert_close(per_sample, per_sample[:, :1].expand_as(per_sample))
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert_close(drop.eval()(x), x)
    model = build(depth=5, drop_path=0.2)
    rates = [block.attn.after[-1].rate for block in model.blocks]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_the_sequence_pool_equals_its_equation():
    """The other pools are compared with timm's."""
    tokens = torch.randn(2, 18, 24, dtype=torch.float64)
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


def shape(dim: int, heads: int, prefix: int) -> TokenShape:
    return TokenShape(embed_dim=dim, num_heads=heads, grid_size=(3, 4), num_prefix_tokens=prefix)


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("name", POS_EMBEDS)
def test_only_a_model_without_positions_ignores_the_order(name, pool, prefix):
    model = build(pos_embed=name, pool=pool, pos_embed_prefix=prefix)
    images, perm = pictures(), torch.randperm(16)
    shuffled = fold(unfold(images, 4, stride=4)[..., perm], (16, 16), 4, stride=4)
    first = model.num_prefix_tokens
    before, after = model.forward_features(images), model.forward_features(shuffled)
    same = torch.allclose(after[:, first:], before[:, first:][:, perm])
    assert same is (name == "none")
    assert torch.allclose(model(images), model(shuffled)) is (name == "none")


def test_the_sinusoids_equal_the_formula_of_the_paper_for_row_and_column():
    table = sincos(torch.arange(50), 16)
    for position, i in [(0, 0), (7, 3), (49, 7)]:
        angle = position / 10_000 ** (2 * i / 16)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)
    table = sincos2d((3, 5), 16).view(3, 5, 16)
    assert_close(table[..., :8], table[:, :1, :8].expand(3, 5, 8))
    assert_close(table[..., 8:], table[:1, :, 8:].expand(3, 5, 8))
    assert len(table.flatten(0, 1).unique(dim=0)) == 15


@pytest.mark.parametrize("name", POS_EMBEDS)
def test_fixed_tables_are_not_saved(name):
    model = build(pos_embed=name)
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()


@pytest.mark.parametrize(("prefix", "length"), [(False, 16), (True, 18)])
@pytest.mark.parametrize("name", ["learned", "sincos1d", "sincos2d"])
def test_the_prefix_has_positions_only_with_pos_embed_prefix(name, prefix, length):
    model = build(pos_embed=name, reg_tokens=1, pos_embed_prefix=prefix)
    table = model.pos_embed()
    assert table.shape == (1, length, 24)
    with torch.no_grad():
        table[:, 2 * prefix :] += 5
        expected = torch.cat([model.cls_token, model.reg_tokens], 1)
        if prefix:
            expected = expected + table[:, :2]
        assert_close(model.embed(pictures())[:, :2], expected.expand(2, -1, -1))
    if name == "sincos2d" and prefix:
        assert table[:, :2].abs().max() == 0


def test_rope_depends_on_relative_offsets_and_skips_the_prefix():
    rope = Rope2d(shape(8, 1, prefix=2)).double()
    q, k = torch.randn(2, 8, dtype=torch.float64)
    queries, keys = (rope(each.expand(1, 1, 14, -1))[0, 0] for each in (q, k))
    table = queries @ keys.T
    assert_close(table[:2, :2], (q @ k).expand(2, 2))
    patches = table[2:, 2:].reshape(3, 4, 3, 4)
    assert_close(patches[0, 0, 1, 2], patches[1, 1, 2, 3])
    assert_close(patches[2, 1, 0, 3], patches[2, 0, 0, 2])
    assert len(patches.flatten().round(decimals=4).unique()) == 5 * 7
    assert_close(queries.norm(dim=-1), q.norm().expand(14))


def test_the_relative_bias_has_one_entry_for_each_offset():
    bias = RelativeBias(shape(8, 2, prefix=1))
    with torch.no_grad():
        bias.relative_table.copy_(torch.randn_like(bias.relative_table))
    table = bias.bias()[0]
    assert table[:, 0].abs().max() == 0
    assert table[:, :, 0].abs().max() == 0
    patches = table[:, 1:, 1:].reshape(2, 3, 4, 3, 4)
    assert_close(patches[:, 0, 0, 1, 2], patches[:, 1, 1, 2, 3])
    assert len(patches[0].flatten().unique()) == 5 * 7
