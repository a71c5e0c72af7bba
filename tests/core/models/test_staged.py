"""Swin, CoAtNet, PiT and CCT equal torchvision's parts and have their published sizes."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torchvision.models.maxvit import MBConv as TheirMBConv
from torchvision.models.swin_transformer import SwinTransformer

from tests.core.models.published import PUBLISHED, parameters_of
from tests.core.models.staged_models import COATNET, FAMILIES, PIT, SWIN, build, scrambled
from tests.core.specs import pictures
from vitcli.core.models.image_model import build_model
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.block import DropPath
from vitcli.core.nn.mbconv import MBConv, as_map, as_tokens, build_shortcut
from vitcli.core.nn.pos_embed import RelativeBias
from vitcli.core.nn.window import WindowAttention


@pytest.mark.parametrize("size", [(32, 32), (32, 64), (36, 44)])
def test_swin_logits_equal_torchvision(size):
    spec = SWIN.replace(img_size=size, depths=(2, 3, 2))
    ours = build(spec)
    norm, sizes = partial(nn.LayerNorm, eps=1e-5), {"num_heads": [3, 6, 12], "window_size": [4, 4]}
    theirs = SwinTransformer(
        [2, 2], spec.embed_dim, [2, 3, 2], num_classes=5, norm_layer=norm, **sizes
    )
    copy_swin(ours, theirs.double().eval())
    images = pictures(size=size)
    assert_close(ours(images), theirs(images), atol=1e-9, rtol=0)
    features = theirs.features[:4](images).flatten(1, 2)
    tokens = ours.embed(images)
    for stage in ours.stages[:2]:
        tokens = stage.blocks(stage.down(tokens))
    assert_close(tokens, features, atol=1e-9, rtol=0)
    for stage in ours.stages:
        stage.blocks[0].attn.inner.attend.fused = False
    assert_close(ours(images), theirs(images), atol=1e-9, rtol=0)
    ours.stages[1].blocks[1].attn.norm.eps = 1e-1
    assert (ours(images) - theirs(images)).abs().max() > 1e-4


class Doubles:
    """The half of a position of one's own that several positions share."""

    def forward(self, heads):
        assert heads.shape[1] in (3, 6), "those of one window"
        return 2 * heads


class Doubled(Doubles, RelativeBias):
    pass


def test_windows_apply_a_position_that_inherits_what_it_does():
    model, images = build(SWIN), pictures(size=SWIN.img_size)
    parts = [part for part in model.modules() if isinstance(part, WindowAttention)]
    for part in parts:
        part.attend.scale.scale *= 4
    wanted = model(images)
    for part in parts:
        part.attend.scale.scale /= 4
        part.position.relative.__class__ = Doubled
    assert_close(model(images), wanted)


@torch.no_grad()
def copy_swin(ours: Any, theirs: Any) -> None:
    theirs.features[0][0].load_state_dict(ours.patch_embed[0].proj.state_dict())
    theirs.features[0][2].load_state_dict(ours.patch_embed[1].state_dict())
    for i, stage in enumerate(ours.stages):
        if i:
            theirs.features[2 * i].load_state_dict(stage.down.state_dict())
        for block, their in zip(stage.blocks, theirs.features[2 * i + 1], strict=True):
            attention = block.attn.inner
            their.attn.qkv.load_state_dict(attention.qkv.state_dict())
            their.attn.proj.load_state_dict(attention.proj.state_dict())
            table = attention.position.relative.relative_table
            their.attn.relative_position_bias_table.copy_(table.mT)
            their.norm1.load_state_dict(block.attn.norm.state_dict())
            their.norm2.load_state_dict(block.ffn.norm.state_dict())
            their.mlp[0].load_state_dict(block.ffn.inner.fc1.state_dict())
            their.mlp[3].load_state_dict(block.ffn.inner.fc2.state_dict())
    theirs.norm.load_state_dict(ours.norm.state_dict())
    theirs.head.load_state_dict(ours.head.state_dict())


@pytest.mark.parametrize(("before", "after", "stride"), [(8, 8, 1), (6, 12, 1), (6, 12, 2)])
def test_mbconv_equals_torchvision(before, after, stride):
    grid = (6, 10)
    shapes = [
        TokenShape(embed_dim=dim, grid_size=size, num_prefix_tokens=0)
        for dim, size in ((before, grid), (after, tuple(side // stride for side in grid)))
    ]
    ours = scrambled(MBConv(*shapes, build_shortcut(*shapes)))
    theirs = TheirMBConv(
        before, after, 4, 0.25, stride, nn.GELU, partial(nn.BatchNorm2d, eps=1e-5)
    ).double()
    copy_mbconv(ours, theirs.eval())
    tokens = torch.randn(2, 60, before, dtype=torch.float64)
    expected = as_tokens(theirs.layers(as_map(tokens, grid)))
    assert_close(ours.branch(tokens), expected)
    if stride == 1:  # torchvision pools by 3x3 means, CoAtNet by 2x2 maxima
        assert_close(ours(tokens), as_tokens(theirs(as_map(tokens, grid))))
    assert ours(tokens).shape == expected.shape


@torch.no_grad()
def copy_mbconv(ours: Any, theirs: Any) -> None:
    norm, expand, norm_a, _, depthwise, norm_b, _, squeeze, project = ours.branch
    layers = theirs.layers
    pairs = [(norm, layers.pre_norm), (norm_a, layers.conv_a[1]), (norm_b, layers.conv_b[1])]
    pairs += [(expand, layers.conv_a[0]), (depthwise.conv, layers.conv_b[0])]
    pairs += [(squeeze.fc1, layers.squeeze_excitation.fc1), (project, layers.conv_c)]
    pairs += [(squeeze.fc2, layers.squeeze_excitation.fc2)]
    if len(ours.shortcut):
        pairs.append((ours.shortcut[-1], theirs.proj[-1]))
    for one, other in pairs:
        for name, value in one.state_dict().items():
            target = other.state_dict()[name]
            target.copy_(value.view_as(target))


def test_the_first_block_of_a_stage_adds_the_pooled_and_projected_input():
    """The shortcuts equal the formulas of CoAtNet. The branch of MBConv is compared above."""
    model = build(COATNET)
    tokens = torch.randn(2, 256, 24, dtype=torch.float64)
    pooled = as_tokens(F.max_pool2d(as_map(tokens, (16, 16)), 2))
    conv = model.stages[1].blocks[0]
    assert_close(conv(tokens), conv.shortcut[1](pooled) + conv.branch(tokens))
    tokens = torch.randn(2, 64, 48, dtype=torch.float64)
    attn = model.stages[2].blocks[0].attn
    read = as_tokens(F.max_pool2d(as_map(attn.norm(tokens), (8, 8)), 2))
    pooled = as_tokens(F.max_pool2d(as_map(tokens, (8, 8)), 2))
    assert_close(attn(tokens), attn.shortcut[1](pooled) + attn.inner(read))


def test_token_pooling_filters_each_feature_and_maps_the_prefix_alone():
    model = build(PIT)
    pooling = model.stages[1].down
    tokens = torch.randn(2, 2 + 64, 24, dtype=torch.float64)
    conv = pooling.filters.conv
    grid = tokens[:, 2:].mT.reshape(2, 24, 8, 8)
    filtered = F.conv2d(grid, conv.weight, conv.bias, stride=2, padding=1, groups=24)
    expected = torch.cat([pooling.prefix(tokens[:, :2]), filtered.flatten(2).mT], dim=1)
    assert_close(pooling(tokens), expected)
    features = model.forward_features(pictures())
    assert features.shape == (2, 2 + 16, 48)


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_their_published_sizes(name):
    row = PUBLISHED[name]
    share = parameters_of(row.spec) / row.parameters - 1
    assert abs(share) <= row.tolerance, f"{share:+.2%}"


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_sides_are_rounded_up(name):
    model = build(FAMILIES[name].replace(img_size=(12, 20), patch_size=4))
    count = 1 * 2 if name == "coatnet" else 2 * 3  # from 3x5; CoAtNet has one more stage
    tokens = model.forward_features(pictures(1, (12, 20)))
    assert tokens.shape[1] == model.num_prefix_tokens + count


@pytest.mark.parametrize("name", FAMILIES)
def test_stochastic_depth_grows_across_stages(name):
    model = build(FAMILIES[name].replace(drop_path=0.4))
    blocks = [block for stage in model.stages for block in stage.blocks]
    rates = [[m.rate for m in block.modules() if isinstance(m, DropPath)] for block in blocks]
    expected = torch.linspace(0, 0.4, len(blocks)).tolist()
    assert [set(each) for each in rates] == [{each[0]} for each in rates]
    assert [each[0] for each in rates] == pytest.approx(expected)


ABLATIONS: dict[str, dict[str, Any]] = {
    "no positions": {"pos_embed": "none"},
    "single head": {"num_heads": 1},
    "no residual": {"residual": "none"},
    "no norm": {"norm": "none"},
    "no ffn": {"ffn": "none"},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", ABLATIONS)
def test_every_ablation_changes_every_family(family, row):
    spec = FAMILIES[family].replace(**ABLATIONS[row])
    models = []
    for each in (FAMILIES[family], spec):
        torch.manual_seed(0)
        models.append(scrambled(build_model(each)).train())
    full, less = models
    common = {n: p for n, p in full.state_dict().items() if n in less.state_dict()}
    fitting = {n: p for n, p in common.items() if p.shape == less.state_dict()[n].shape}
    less.load_state_dict(fitting, strict=False)
    images = pictures(4)
    assert (full(images) - less(images)).abs().max() > 1e-3
    less(images).square().sum().backward()
    still = [name for name, p in less.named_parameters() if p.grad is None or not p.grad.any()]
    assert not [name for name in still if "cls_token" not in name], still
