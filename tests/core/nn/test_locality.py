"""Layers and initial weights that look at neighbours, compared with their definitions."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.core.specs import build, changed, pictures
from vitcli.core.inspect.maps import attention_maps
from vitcli.core.models.layers import build_patch_embed
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.ffn import DepthwiseMlp
from vitcli.core.nn.impulse import draw_shifts
from vitcli.core.ops.backend import attention_weights
from vitcli.core.randomness import keyed_generator

GRID = (3, 4)
AROUND = [*itertools.product((-1, 0, 1), repeat=2)]


def inside(row: int, column: int, grid: tuple[int, int]) -> bool:
    return 0 <= row < grid[0] and 0 <= column < grid[1]


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_the_depthwise_ffn_adds_filtered_patches(prefix):
    shape = TokenShape(embed_dim=24, grid_size=GRID, num_prefix_tokens=prefix)
    ffn = DepthwiseMlp(shape, hidden_dim=10).double().eval()
    x = torch.randn(2, prefix + 12, 24, dtype=torch.float64)
    hidden, filters = F.gelu(ffn.fc1(x)), ffn.filters.conv
    grid = hidden[:, prefix:].mT.unflatten(-1, GRID)
    filtered = F.gelu(F.conv2d(grid, filters.weight, filters.bias, padding=1, groups=10))
    mixed = torch.cat([hidden[:, :prefix], hidden[:, prefix:] + filtered.flatten(2).mT], dim=1)
    assert_close(ffn(x), ffn.fc2(mixed))


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


LSA = {"attn_mask_diagonal": True, "attn_scale": "learned"}


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    "fields", [{}, {"pos_embed": "relative", "reg_tokens": 1}, {"attn_clamp": True}], ids=str
)
def test_attention_without_the_diagonal_is_masked(fields, fused):
    model = build(depth=1, **LSA, **fields)
    layer, x = model.blocks[0].attn.inner, torch.randn(2, model.token_shape.num_tokens, 24)
    layer.attend.fused, x = fused, x.double()
    query, key, value = layer.heads(x)
    options = {"scale": layer.attend.scale(), "bias": layer.position.bias()}
    weights = attention_weights(query, key, mask=~torch.eye(x.shape[1]).bool(), **options)
    out = layer.proj((weights @ value).transpose(1, 2).flatten(2))
    assert_close(layer(x), out)
    assert_close(layer.forward_with_weights(x)[1], weights)
    assert_close(layer.forward_first(x), out[:, :1])


def test_maps_are_finite_and_a_token_that_is_alone_attends_to_itself():
    assert attention_maps(build(**LSA, reg_tokens=1), pictures())[0].isfinite().all()
    alone = build(**LSA, pool="mean").encode(pictures(), torch.tensor([[3], [7]]))
    assert alone.isfinite().all(), "one visible patch"


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
