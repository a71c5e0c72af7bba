"""Layers and initial weights that look at neighbours, compared with loops over their definitions.

Depthwise filters in the FFN, shifted patches, attention without the diagonal, impulse weights.
"""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.core.specs import build, changed, pictures
from vitcli.core.inspect.maps import attention_maps
from vitcli.core.models.layers import build_patch_embed
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.ffn import DepthwiseMlp
from vitcli.core.nn.impulse import draw_shifts
from vitcli.core.randomness import keyed_generator

GRID = (3, 4)
AROUND = [*itertools.product((-1, 0, 1), repeat=2)]


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def inside(row: int, column: int, grid: tuple[int, int]) -> bool:
    return 0 <= row < grid[0] and 0 <= column < grid[1]


# Depthwise filters in the FFN


def depthwise(prefix: int) -> torch.nn.Module:
    shape = TokenShape(embed_dim=24, grid_size=GRID, num_prefix_tokens=prefix)
    return DepthwiseMlp(shape, hidden_dim=10).double().eval()


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_the_depthwise_ffn_equals_a_loop_over_patches_and_neighbours(prefix):
    ffn, x = depthwise(prefix), torch.randn(2, prefix + 12, 24, dtype=torch.float64)
    hidden = gelu(x @ ffn.fc1.weight.T + ffn.fc1.bias)
    mixed = hidden.clone()
    filters = ffn.filters.conv
    for row, column in itertools.product(*map(range, GRID)):
        total = filters.bias.expand(2, 10)
        for down, right in AROUND:
            if inside(row + down, column + right, GRID):
                place = prefix + (row + down) * GRID[1] + column + right
                total = total + filters.weight[:, 0, down + 1, right + 1] * hidden[:, place]
        mixed[:, prefix + row * GRID[1] + column] += gelu(total)
    assert_close(ffn(x), mixed @ ffn.fc2.weight.T + ffn.fc2.bias)


# Shifted patches


@pytest.mark.parametrize(("size", "patch"), [((16, 16), 4), ((8, 16), 2), ((6, 9), 3)])
def test_shifted_patches_equal_a_loop_over_pixels(size, patch):
    spec = changed(patch_embed="shifted", patch_size=patch, img_size=size)
    embed, images = build_patch_embed(spec).double(), pictures(size=size)
    half, columns = patch // 2, size[1] // patch
    shifts = [(0, 0), (-half, -half), (-half, half), (half, -half), (half, half)]
    vectors = torch.zeros(2, size[0] // patch * columns, 15 * patch**2, dtype=torch.float64)
    for token in range(vectors.shape[1]):
        pixels = itertools.product(shifts, range(3), range(patch), range(patch))
        for index, ((down, right), channel, i, j) in enumerate(pixels):
            row, column = token // columns * patch + i + down, token % columns * patch + j + right
            if inside(row, column, size):
                vectors[:, token, index] = images[:, channel, row, column]
    centre = vectors - vectors.mean(-1, keepdim=True)
    normed = centre / (centre.square().mean(-1, keepdim=True) + embed[0].norm.eps).sqrt()
    assert_close(embed(images), normed @ embed[0].proj.weight.T + embed[0].proj.bias)


# Attention without the diagonal


def masked_by_hand(model: VisionTransformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output (B, N, D) and the weights (B, h, N, N) of the first attention."""
    layer: Any = model.blocks[0].attn.inner
    count, heads, width = x.shape[1], layer.num_heads, x.shape[2] // layer.num_heads
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).chunk(3, dim=-1)
    bias = layer.position.bias()
    weights = torch.zeros(len(x), heads, count, count, dtype=x.dtype)
    out = torch.zeros_like(x)
    for image, head, i in itertools.product(range(len(x)), range(heads), range(count)):
        part = slice(head * width, (head + 1) * width)
        scale = layer.attend.scale()
        scale = scale[head, 0, 0] if isinstance(scale, Tensor) else scale
        others = [j for j in range(count) if j != i]
        scores = torch.stack([scale * (q[image, i, part] @ k[image, j, part]) for j in others])
        if bias is not None:
            scores = scores + bias[0, head, i, others]
        weights[image, head, i, others] = scores.exp() / scores.exp().sum()
        out[image, i, part] = weights[image, head, i] @ v[image, :, part]
    return out @ layer.proj.weight.T + layer.proj.bias, weights


LSA = {"attn_mask_diagonal": True, "attn_scale": "learned"}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"pos_embed": "relative", "reg_tokens": 1}, {"attn_clamp": True}], ids=str
)
def test_attention_without_the_diagonal_equals_a_loop(fields, fused):
    model = build(depth=1, **LSA, **fields)
    layer, x = model.blocks[0].attn.inner, torch.randn(2, model.token_shape.num_tokens, 24)
    layer.attend.fused, x = fused, x.double()
    out, weights = masked_by_hand(model, x)
    assert_close(layer(x), out)
    assert_close(layer.forward_with_weights(x)[1], weights)
    assert_close(layer.forward_first(x), out[:, :1])
    kept = build(depth=1, **fields | {"attn_scale": "learned"})
    kept.load_state_dict(model.state_dict())
    assert (kept.blocks[0].attn.inner(x) - out).abs().max() > 1e-3, "a control"


def test_maps_have_an_empty_diagonal_and_a_token_that_is_alone_attends_to_itself():
    model = build(**LSA, reg_tokens=1)
    for weights in model.attention_weights(pictures()).values():
        assert weights.diagonal(dim1=-2, dim2=-1).abs().max() == 0
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    assert attention_maps(model, pictures())[0].isfinite().all()
    alone = build(**LSA, pool="mean").encode(pictures(), torch.tensor([[3], [7]]))
    assert alone.isfinite().all(), "one visible patch"


# Impulse weights

SETTINGS = [
    {"embed_dim": 64, "num_heads": 4, "img_size": (32, 32)},
    {"embed_dim": 64, "num_heads": 4, "img_size": (32, 32), "pos_embed": "sincos2d"},
    {"embed_dim": 64, "num_heads": 4, "img_size": (32, 32), "pos_embed": "sincos1d"},
    {"embed_dim": 192, "num_heads": 3, "img_size": (32, 24), "pool": "mean"},
    {"embed_dim": 96, "num_heads": 3, "img_size": (32, 32), "pos_embed_prefix": True},
    {"embed_dim": 96, "num_heads": 12, "img_size": (16, 16), "reg_tokens": 2},
]


def hits(model: VisionTransformer, seed: int) -> list[float]:
    """Return for each head the share of patches whose largest weight is at the head's offset.

    The tokens are the positions alone. Patches at the border without this neighbour are left out.
    """
    grid, found = model.grid_size, []
    tokens = torch.zeros(1, model.token_shape.num_tokens, model.spec.embed_dim)
    first = model.num_prefix_tokens
    assert model.pos_embed is not None
    tokens[:, first:] = model.pos_embed()[:, -model.num_patches :].detach()
    for index, block in enumerate(model.blocks):
        name = f"blocks.{index}.attn.inner.qkv.weight"
        shifts = draw_shifts(model.spec.num_heads, keyed_generator("init", seed, name))
        attn: Any = block.attn
        weights = attn.inner.forward_with_weights(attn.norm(tokens))[1][0]
        for head, (down, right) in enumerate(shifts):
            peaks = weights[head, first:, first:].argmax(-1).tolist()
            cells = itertools.product(range(grid[0]), range(grid[1]))
            hit = [
                peaks[row * grid[1] + column] == (row + down) * grid[1] + column + right
                for row, column in cells
                if inside(row + down, column + right, grid)
            ]
            found.append(sum(hit) / len(hit))
    return found


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_each_head_attends_to_its_neighbour(fields):
    model = build_vit(changed(init="impulse", **fields), seed=3)
    assert min(hits(model, 3)) > 0.8, hits(model, 3)
    plain = build_vit(changed(init="trunc_normal", **fields), seed=3)
    assert max(hits(plain, 3)) < 0.6, "a control"


def test_offsets_are_random_and_cover_the_filter_before_one_repeats():
    drawn = [draw_shifts(12, keyed_generator("init", seed, "a")) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    for shifts in drawn:
        assert sorted(shifts[:9]) == AROUND
        assert len(set(shifts[9:])) == 3
    model = build_vit(changed(init="impulse"), seed=0)
    first, second = (block.attn.inner.qkv.weight for block in model.blocks)
    assert not first.equal(second), "layers have their own offsets"
