"""Swin, CoAtNet, PiT and CCT have their published sizes and documented properties."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torchvision.models.maxvit import MBConv as TheirMBConv

from tests.core.models.published import PUBLISHED, parameters_of
from tests.core.models.staged_models import COATNET, FAMILIES, PIT, build, pictures, scrambled
from vitcli.core.models.build import build_model
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.block import DropPath
from vitcli.core.nn.mbconv import MBConv, as_map, as_tokens, build_shortcut
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.spec import model_spec


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
def test_stages_halve_the_grid_and_double_the_width(name):
    model = build(FAMILIES[name])
    shapes = []
    for stage in model.stages:
        for block in stage.blocks:
            block.register_forward_hook(lambda *a: shapes.append(tuple(a[2].shape)))
    model(pictures())
    prefix = model.num_prefix_tokens
    widths = {(tokens - prefix, width) for _, tokens, width in shapes}
    expected = {"swin": {(64, 24), (16, 48)}, "pit": {(64, 24), (16, 48)}}
    assert widths == expected.get(name, {(256, 24), (64, 48), (16, 96)})


@pytest.mark.parametrize("name", FAMILIES)
def test_odd_sides_are_rounded_up(name):
    model = build(FAMILIES[name].replace(img_size=(12, 20), patch_size=4))
    count = 1 * 2 if name == "coatnet" else 2 * 3  # from 3x5; CoAtNet has one more stage
    tokens = model.forward_features(pictures(1, (12, 20)))
    assert tokens.shape[1] == model.num_prefix_tokens + count


def test_a_dropped_mbconv_returns_its_shortcut():
    shape = TokenShape(embed_dim=8, grid_size=(4, 4), num_prefix_tokens=0)
    block = scrambled(MBConv(shape, shape, nn.Identity(), drop_path=1 - 1e-12)).train()
    tokens = torch.randn(3, 16, 8, dtype=torch.float64)
    assert torch.equal(block(tokens), tokens)
    assert not torch.equal(block.eval()(tokens), tokens)


@pytest.mark.parametrize("name", FAMILIES)
def test_stochastic_depth_grows_across_stages(name):
    model = build(FAMILIES[name].replace(drop_path=0.4))
    blocks = [block for stage in model.stages for block in stage.blocks]
    rates = [[m.rate for m in block.modules() if isinstance(m, DropPath)] for block in blocks]
    expected = torch.linspace(0, 0.4, len(blocks)).tolist()
    assert [set(each) for each in rates] == [{each[0]} for each in rates]
    assert [each[0] for each in rates] == pytest.approx(expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_recomputing_blocks_changes_no_gradient(name):
    model = build_model(FAMILIES[name].replace(drop_path=0.3)).double().train()
    grads = []
    for recompute in (False, True):
        model.grad_checkpointing = recompute
        model.zero_grad()
        torch.manual_seed(5)
        model(pictures_of_one_seed()).square().mean().backward()
        grads.append([parameter.grad.clone() for parameter in model.parameters()])
        counts = [m.num_batches_tracked for m in model.modules() if isinstance(m, TokenBatchNorm)]
        assert set(map(int, counts)) <= {1 + recompute}, "a batch counts once"
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def pictures_of_one_seed() -> torch.Tensor:
    torch.manual_seed(3)
    return pictures(4)


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
    counts = [sum(p.numel() for p in model.parameters()) for model in models]
    assert counts[1] <= counts[0]
    assert counts[1] < counts[0] or row in ("single head", "no residual")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"family": "swin", "pool": "mean"}, "needs depths"),
        ({"family": "swin", "depths": (1,)}, "no CLS token; set pool to mean or seq"),
        ({"family": "swin", "depths": (1,), "pool": "mean"}, "needs pos_embed 'relative'"),
        ({"family": "swin", "depths": (1,), "attention": "linear"}, "has no attention"),
        ({"family": "pit", "depths": (1,), "init": "mimetic"}, "only for family 'vit'"),
        ({"family": "pit", "depths": (1,), "window_size": 2}, "has no window_size"),
        ({"family": "swin", "depths": (1,), "attn_mask_diagonal": True}, "no attn_mask_diagonal"),
        ({"patch_embed": "shifted", "patch_size": 1}, "'shifted' needs a patch_size of 2 or more"),
        ({"patch_embed": "shifted", "patch_pre_norm": True}, "patch_pre_norm needs"),
        ({"init": "impulse", "pos_embed": "rope2d"}, "needs pos_embed 'learned' or 'sincos1d'"),
        ({"init": "impulse", "attn_proj": False}, "'impulse' needs attn_proj"),
        ({"init": "impulse", "attention": "linformer"}, "attention 'linformer' does not have"),
        ({"depths": (1,)}, "family 'vit' has no depths"),
        ({"stem_width": 8}, "stem_width needs patch_embed"),
        ({"stem_width": 8, "patch_embed": "conv_stem", "patch_size": 2}, "stem_width needs"),
    ],
)
def test_contradicting_fields_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        model_spec(**fields)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "CT"}, "must name 3 stages"),
        ({"layout": "CCC"}, "must be Cs"),
        ({"patch_size": 8}, "patch_size 1, 2 or 4"),
    ],
)
def test_contradicting_fields_of_coatnet_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        COATNET.replace(**change)
