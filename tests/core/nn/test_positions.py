"""Position embeddings: which models depend on the order of the patches, and how."""

import math

import pytest
import torch
from torch.nn.functional import fold, unfold
from torch.testing import assert_close

from tests.core.specs import build, pictures
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.pos_embed import RelativeBias, Rope2d, sincos, sincos2d
from vitcli.core.spec.slots import POS_EMBEDS


def shape(dim: int, heads: int, prefix: int) -> TokenShape:
    return TokenShape(embed_dim=dim, num_heads=heads, grid_size=(3, 4), num_prefix_tokens=prefix)


def shuffle(images: torch.Tensor, patch_size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images whose patches are permuted at random, all in the same way."""
    size = tuple(images.shape[-2:])
    columns = unfold(images, patch_size, stride=patch_size)
    perm = torch.randperm(columns.shape[-1])
    return fold(columns[..., perm], size, patch_size, stride=patch_size), perm


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("name", POS_EMBEDS)
def test_only_a_model_without_positions_ignores_the_order(name, pool, prefix):
    model = build(pos_embed=name, pool=pool, pos_embed_prefix=prefix)
    images = pictures()
    shuffled, perm = shuffle(images)
    first = model.num_prefix_tokens
    before, after = model.forward_features(images), model.forward_features(shuffled)
    same = torch.allclose(after[:, first:], before[:, first:][:, perm])
    assert same is (name == "none")
    assert torch.allclose(model(images), model(shuffled)) is (name == "none")


def test_the_sinusoids_equal_the_formula_of_the_paper():
    table = sincos(torch.arange(50), 16)
    for position, i in [(0, 0), (7, 3), (49, 7)]:
        angle = position / 10_000 ** (2 * i / 16)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sincos2d_encodes_row_and_column():
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


def scores(rope: Rope2d, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the scores (N, N) of equal queries and keys at all pairs of positions."""
    count = rope.cos.shape[0]
    turned = [rope(t.expand(1, 1, count, -1))[0, 0] for t in (q, k)]
    return turned[0] @ turned[1].T


def test_rope_depends_on_relative_offsets_and_skips_the_prefix():
    rope = Rope2d(shape(8, 1, prefix=2)).double()
    q, k = torch.randn(2, 8, dtype=torch.float64)
    table = scores(rope, q, k)
    assert_close(table[:2, :2], (q @ k).expand(2, 2))
    patches = table[2:, 2:].reshape(3, 4, 3, 4)
    assert_close(patches[0, 0, 1, 2], patches[1, 1, 2, 3])
    assert_close(patches[2, 1, 0, 3], patches[2, 0, 0, 2])
    assert len(patches.flatten().round(decimals=4).unique()) == 5 * 7
    norms = rope(q.expand(1, 1, 14, 8)).norm(dim=-1)
    assert_close(norms, q.norm().expand_as(norms))


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
