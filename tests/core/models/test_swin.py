"""Swin and its parts equal torchvision's."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torchvision.models.swin_transformer import PatchMerging as TheirMerging
from torchvision.models.swin_transformer import ShiftedWindowAttention, SwinTransformer

from tests.core.models.staged_models import SWIN, build, pictures, scrambled
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.init import init_parts
from vitcli.core.nn.pos_embed import RelativeBias
from vitcli.core.nn.softmax import Softmax
from vitcli.core.nn.window import PatchMerging, WindowAttention, Windows
from vitcli.core.randomness import keyed_generator


def window_attention(dim: int, heads: int, windows: Windows) -> WindowAttention:
    """Return window attention with a relative bias."""
    sizes: Any = {"embed_dim": dim, "num_heads": heads, "num_prefix_tokens": 0}
    shape = TokenShape(grid_size=windows.grid_size, **sizes)
    relative = RelativeBias(TokenShape(grid_size=windows.size, **sizes))
    return WindowAttention(shape, Softmax(shape), windows, relative)


def attention_pair(grid, window, shift, heads=2, dim=8):
    """Return the window attention of vitcli and of torchvision, with the same weights."""
    windows = Windows(grid, window, shifted=shift > 0)
    ours = scrambled(window_attention(dim, heads, windows))
    theirs = ShiftedWindowAttention(dim, [window, window], [shift, shift], heads).double().eval()
    copy_attention(ours, theirs)
    return ours, theirs


@torch.no_grad()
def copy_attention(ours: Any, theirs: Any) -> None:
    theirs.qkv.load_state_dict(ours.qkv.state_dict())
    theirs.proj.load_state_dict(ours.proj.state_dict())
    theirs.relative_position_bias_table.copy_(ours.position.relative.relative_table.mT)


@pytest.mark.parametrize(
    ("grid", "window", "shift"),
    [
        *(((8, 8), 4, 0), ((8, 8), 4, 2), ((4, 4), 2, 1), ((14, 14), 7, 3), ((8, 12), 4, 2)),
        *(((4, 8), 4, 2), ((8, 4), 4, 2), ((7, 10), 4, 2), ((9, 6), 3, 1), ((5, 5), 4, 0)),
    ],
)
@pytest.mark.parametrize("fused", [True, False])
def test_window_attention_equals_torchvision(grid, window, shift, fused):
    ours, theirs = attention_pair(grid, window, shift)
    ours.attend.fused = fused
    tokens = torch.randn(2, grid[0] * grid[1], 8, dtype=torch.float64)
    expected = theirs(tokens.unflatten(1, grid)).flatten(1, 2)
    assert_close(ours(tokens), expected, atol=1e-9, rtol=0)
    if shift:
        other, _ = attention_pair(grid, window, 0)
        other.load_state_dict(ours.state_dict())
        assert (other(tokens) - expected).abs().max() > 1e-3, "the shift matters"


@pytest.mark.parametrize("grid", [(8, 8), (7, 9), (6, 4)])
def test_patch_merging_equals_torchvision(grid):
    shape = TokenShape(embed_dim=6, grid_size=grid, num_prefix_tokens=0)
    ours, theirs = scrambled(PatchMerging(shape, nn.LayerNorm(24))), TheirMerging(6).double()
    theirs.load_state_dict(ours.state_dict())
    tokens = torch.randn(2, grid[0] * grid[1], 6, dtype=torch.float64)
    assert_close(ours(tokens), theirs(tokens.unflatten(1, grid)).flatten(1, 2))


@pytest.mark.parametrize("size", [(32, 32), (32, 64), (36, 44)])
def test_swin_logits_equal_torchvision(size):
    spec = SWIN.replace(img_size=size, depths=(2, 3, 1))
    ours = build(spec)
    theirs = SwinTransformer(
        patch_size=[2, 2],
        embed_dim=spec.embed_dim,
        depths=[2, 3, 1],
        num_heads=[3, 6, 12],
        window_size=[4, 4],
        num_classes=5,
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
    )
    theirs = theirs.double().eval()
    copy_swin(ours, theirs)
    images = pictures(size=size)
    assert_close(ours(images), theirs(images), atol=1e-9, rtol=0)
    features = theirs.features[:4](images).flatten(1, 2)
    tokens = ours.embed(images)
    for stage in ours.stages[:2]:
        tokens = stage.blocks(stage.down(tokens))
    assert_close(tokens, features, atol=1e-9, rtol=0)
    ours.stages[1].blocks[1].attn.norm.eps = 1e-1
    assert (ours(images) - theirs(images)).abs().max() > 1e-4


@torch.no_grad()
def copy_swin(ours: Any, theirs: Any) -> None:
    theirs.features[0][0].load_state_dict(ours.patch_embed[0].proj.state_dict())
    theirs.features[0][2].load_state_dict(ours.patch_embed[1].state_dict())
    for i, stage in enumerate(ours.stages):
        if i:
            theirs.features[2 * i].load_state_dict(stage.down.state_dict())
        for block, their in zip(stage.blocks, theirs.features[2 * i + 1], strict=True):
            copy_attention(block.attn.inner, their.attn)
            their.norm1.load_state_dict(block.attn.norm.state_dict())
            their.norm2.load_state_dict(block.ffn.norm.state_dict())
            their.mlp[0].load_state_dict(block.ffn.inner.fc1.state_dict())
            their.mlp[3].load_state_dict(block.ffn.inner.fc2.state_dict())
    theirs.norm.load_state_dict(ours.norm.state_dict())
    theirs.head.load_state_dict(ours.head.state_dict())


def test_the_table_of_a_window_starts_with_a_small_spread():
    attention = window_attention(8, 2, Windows((32, 32), 32, shifted=False))
    init_parts(attention, partial(keyed_generator, 0))
    table = attention.position.relative.relative_table
    assert table.std().item() == pytest.approx(0.02, rel=0.1)
