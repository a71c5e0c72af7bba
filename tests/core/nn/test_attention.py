"""Attention: the fused and the explicit path are equal; masks, scales and dropout work."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from tests.core.specs import build, changed, noisy
from vitcli.core.models.layers import build_attention
from vitcli.core.nn.attention import Position, SelfAttention, Softmax, TokenShape
from vitcli.core.nn.pos_embed import RelativeBias, Rope2d
from vitcli.core.ops.backend import attention, attention_weights, fused_attention
from vitcli.core.spec.slots import ATTN_SCALES

SHAPE = TokenShape(embed_dim=24, num_heads=3, grid_size=(3, 4), num_prefix_tokens=1)


def qkv(length: int = 6, keys: int = 6, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.randn(2, 3, n, 8, dtype=dtype) for n in (length, keys, keys)]


def layer(position: Position | None = None, **fields) -> SelfAttention:
    spec = changed(**fields)
    shape = replace(SHAPE, num_heads=spec.num_heads)
    return noisy(build_attention(spec, shape, SelfAttention, position).double().eval())


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, SHAPE.num_tokens, 24, dtype=torch.float64)


@pytest.mark.parametrize("extra", ["nothing", "bias"])
@pytest.mark.parametrize(("width", "multiple"), [(5, 4), (50, 8), (8, 8)])
def test_heads_padded_with_zeros_give_the_same_result_and_gradients(width, multiple, extra):
    sizes = (6, width), (9, width), (9, width)
    heads = [torch.randn(2, 3, *size, dtype=torch.float64, requires_grad=True) for size in sizes]
    bias = torch.randn(1, 3, 6, 9, dtype=torch.float64) if extra == "bias" else None
    q, k, v = heads
    padded = fused_attention(q * width**-0.5, k, v, bias, 0.0, multiple)
    plain = attention(q, k, v, bias=bias, fused=False)
    assert_close(padded, plain)
    weight = torch.randn_like(plain)
    found = torch.autograd.grad((padded * weight).sum(), heads)
    assert_close(found, torch.autograd.grad((plain * weight).sum(), heads))


@pytest.mark.parametrize("scale", ATTN_SCALES)
@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("make", [Position, lambda: RelativeBias(SHAPE), lambda: Rope2d(SHAPE)])
def test_reported_weights_are_the_weights_used(x, scale, make, clamp):
    shell = layer(make(), attn_scale=scale, attn_clamp=clamp)
    with torch.no_grad():
        shell.qkv.weight *= 200 if clamp else 1  # large enough for the clamp to act
    weights = shell.forward_with_weights(x)[1]
    assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    out = (weights @ shell.heads(x)[2]).transpose(1, 2).flatten(2)
    assert_close(shell.proj(out), shell(x))
    shell.attend.fused = False
    assert_close(shell.proj(out), shell(x))


def test_the_learned_temperature_starts_at_head_dim_and_learns(x):
    shell = SelfAttention(SHAPE, Softmax(SHAPE, scale="learned")).double()
    temperature = shell.attend.scale.temperature
    assert_close(temperature.exp().flatten(), torch.full((3,), 8**-0.5, dtype=torch.float64))
    shell(x).square().sum().backward()
    assert temperature.grad.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_masking_bias_and_the_clamp_work_in_every_data_type(dtype):
    q, k, v = qkv(dtype=dtype)
    bias = torch.full((6, 6), -torch.inf).triu(1)
    for fused in (True, False):
        out = attention(q, k, v, bias=bias, fused=fused, clamp=not fused)
        assert out.isfinite().all()
        assert_close(out[:, :, 0], v[:, :, 0])


def test_the_clamp_makes_large_scores_equal_and_is_off_by_default():
    q = torch.tensor([[[[1.0]]]], dtype=torch.float64)
    k = torch.tensor([[[[2e4], [1.5e4]]]], dtype=torch.float64)
    assert_close(attention_weights(q, k, scale=1.0).flatten(), q.new_tensor([1.0, 0.0]))
    tied = attention_weights(q, k, scale=1.0, clamp=True).flatten()
    assert_close(tied, q.new_tensor([0.5, 0.5]))


@pytest.mark.parametrize("fused", [True, False])
def test_attn_drop_acts_in_training_only(x, fused):
    shell = layer(attn_drop=0.5)
    shell.attend.fused = fused
    calm = shell(x)
    assert_close(calm, shell(x))
    assert not torch.allclose(shell.train()(x), calm)


def test_proj_drop_drops_the_output_of_the_layer(x):
    shell = layer(proj_drop=0.5)
    calm, dropped = shell(x), shell.train()(x)
    kept = dropped != 0
    assert 0.4 < kept.double().mean() < 0.6
    assert_close(dropped[kept], 2 * calm[kept])


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("layers", [None, [0], [-1]])
def test_a_model_reports_the_weights_it_uses(layers, place):
    model, images = build(norm_position=place), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    found = model.attention_weights(images, layers)
    assert set(found) == {None: {0, 1}, 0: {0}, -1: {1}}[layers and layers[0]]
    seen = {}
    for i, block in enumerate(model.blocks):
        block.attn.inner.register_forward_pre_hook(lambda m, a, i=i: seen.update({i: (m, a[0])}))
    model.forward_features(images)
    for i, weights in found.items():
        shell, tokens = seen[i]
        assert_close(weights, shell.forward_with_weights(tokens)[1])
    with pytest.raises(ValueError, match="layer 2 is out of range"):
        model.attention_weights(images, [2])
