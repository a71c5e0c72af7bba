"""Each attention rule satisfies the mathematics of its paper; negative controls do not."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from tests.core.specs import changed
from vitcli.core.models.layers import make_part
from vitcli.core.models.vit import build_vit
from vitcli.core.nn import linear_attention as linear
from vitcli.core.nn.attention import SelfAttention, TokenShape, before_step
from vitcli.core.ops.backend import attention, attention_weights
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.core.train.ema import Ema

ROWS = [name for name in ATTENTIONS if name != "softmax"]


def shape_of(grid: tuple[int, int], prefix: int = 1, dim: int = 16, heads: int = 2) -> TokenShape:
    return TokenShape(embed_dim=dim, num_heads=heads, grid_size=grid, num_prefix_tokens=prefix)


def rule_of(name: str, shape: TokenShape, **fields: int) -> Any:
    sizes = {"embed_dim": shape.embed_dim, "num_heads": shape.num_heads}
    rule = make_part(changed(attention=name, **sizes, **fields), "attention", shape)
    rule.fused = False
    return rule


def qkv(shape: TokenShape, scale: float = 1.0) -> list[Tensor]:
    size = (2, shape.num_heads, shape.num_tokens, shape.head_dim)
    return [(scale * torch.randn(size, dtype=torch.float64)).requires_grad_() for _ in range(3)]


def assert_same_with_gradients(one: Tensor, other: Tensor, inputs: list[Tensor]) -> None:
    assert_close(one, other, rtol=0, atol=1e-12)
    pairs = [torch.autograd.grad(out.square().sum(), inputs) for out in (one, other)]
    for mine, theirs in zip(*pairs, strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", ["heads", "none", "kv"])
def test_linformer_with_identity_projections_equals_softmax(share):
    shape = shape_of((3, 4))
    rule = linear.Linformer(shape, rank=99, share=share).double()
    q, k, v = inputs = qkv(shape)
    rows = 2 * 13 if share == "none" else 13
    assert rule.key_proj.shape == (rows, 13), "no more rows than tokens"
    assert_same_with_gradients(rule(q, k, v), attention(q, k, v, fused=False), inputs)


def test_the_first_projections_are_means_of_neighbours():
    assert_close(linear.segment_means(8, 256), torch.eye(8).repeat_interleave(32, 1) / 32)
    uneven = [[1 / 3, 1 / 3, 1 / 3, 0, 0], [0, 0, 0, 1 / 2, 1 / 2]]
    assert_close(linear.segment_means(2, 5), torch.tensor(uneven))


def estimate(q: Tensor, k: Tensor, count: int) -> Tensor:
    projection = linear.orthogonal_features(count, q.shape[-1]).double()
    phi_q, phi_k = (linear.log_features(x, projection, q.shape[-1] ** -0.5).exp() for x in (q, k))
    return phi_q @ phi_k.T / count


def test_the_estimate_of_performer_is_unbiased():
    """The test fails without random signs, because QR fixes the signs of Q."""
    q, k = (0.25 * torch.randn(16, 32, dtype=torch.float64) for _ in range(2))
    exact = (q @ k.T * 32**-0.5).exp()
    draws = torch.stack([estimate(q, k, 64) for _ in range(400)])
    error = draws.std(dim=0) / math.sqrt(400)
    assert ((draws.mean(dim=0) - exact) / error).square().mean().sqrt() < 2, "in standard errors"
    biased = (draws.mean(dim=0) * 1.02 - exact) / error
    assert biased.square().mean().sqrt() > 3, "a control: a bias of 2 % is seen"


def test_features_are_orthogonal_in_blocks_and_have_gaussian_lengths():
    features = linear.orthogonal_features(40, 16)
    assert features.shape == (40, 16)
    products = features[:16] @ features[:16].T
    assert_close(products, products.diag().diag(), atol=1e-4, rtol=0)
    lengths = linear.orthogonal_features(4096, 16).norm(dim=1).square()
    assert abs(float(lengths.mean()) - 16) < 0.5, "chi squared with 16 degrees of freedom"
    assert abs(float(lengths.var()) - 32) < 4


@pytest.mark.parametrize("name", ["performer", "linear"])
def test_the_implied_weights_sum_to_1_and_give_the_output(name):
    shape = shape_of((4, 4), dim=32)
    rule = rule_of(name, shape)
    q, k, v = (part.float() for part in qkv(shape))
    weights = rule.weights(q, k)
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=-1), torch.ones(2, 2, 17))
    assert_close(weights @ v, rule(q, k, v), atol=1e-5, rtol=1e-4)


def test_performer_survives_large_inputs():
    shape = shape_of((4, 4), dim=32)
    rule = linear.Performer(shape)
    q, k, v = (part.float() for part in qkv(shape, scale=60.0))
    assert rule(q, k, v).isfinite().all()
    with torch.autocast("cpu", torch.bfloat16):
        assert rule(q.bfloat16(), k.bfloat16(), v.bfloat16()).dtype is torch.bfloat16


def test_linear_attention_equals_the_result_by_hand():
    q, k = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [-1.0]])
    v = torch.tensor([[1.0], [5.0]])
    rule = linear.LinearAttention(shape_of((1, 2), 0))
    phi = [2.0, math.exp(-1.0)]  # of the keys; the factor of the query cancels
    expected = (phi[0] * 1 + phi[1] * 5) / sum(phi)
    out = rule(q[None, None], k[None, None], v[None, None])
    assert_close(out.flatten(), torch.full((2,), expected))
    nothing = torch.zeros(1, 1, 3, 2)
    assert linear.attend_by_features(nothing, nothing, torch.ones(1, 1, 3, 1)).abs().max() == 0


def drawn(model: nn.Module) -> Tensor:
    return torch.stack([m.projection for m in model.modules() if isinstance(m, linear.Performer)])


def test_new_features_depend_on_step_and_seed_only():
    spec = changed(attention="performer", performer_redraw=10)
    first, second = build_vit(spec), build_vit(spec)
    second.load_state_dict(first.state_dict())
    before = drawn(first)
    before_step(first, 5, 9)
    assert drawn(first).equal(before), "not due yet"
    before_step(first, 5, 10)
    torch.rand(3)
    before_step(second, 5, 10)
    assert not drawn(first).equal(before)
    assert drawn(first).equal(drawn(second))
    before_step(second, 6, 10)
    assert not drawn(first).equal(drawn(second)), "another seed"
    assert not drawn(first)[0].equal(drawn(first)[1]), "another layer"
    ema = Ema(second, 0.9)
    before_step(second, 6, 20)
    ema.update(0.5)
    assert drawn(ema.model).equal(drawn(second)), "an average of weights copies the features"


@pytest.mark.parametrize("name", ["strided", "local"])
@pytest.mark.parametrize("grid", [(3, 5), (1, 6), (8, 8)])
@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("window", [1, 5])
def test_sparse_attention_equals_masked_softmax(name, grid, prefix, window):
    shape = shape_of(grid, prefix)
    found = rule_of(name, shape, attn_window=window).eval()
    q, k, v = inputs = qkv(shape)
    expected = attention_weights(q, k, scale=q.shape[-1] ** -0.5, mask=found.mask()) @ v
    assert_same_with_gradients(found(q, k, v), expected, inputs)
    assert_close(found.weights(q, k) @ v, found(q, k, v))


def largest_kept(rule: nn.Module, shape: TokenShape) -> int:
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    q, k, v = (torch.randn(1, 1, shape.num_tokens, 8, requires_grad=True) for _ in range(3))
    with saved_tensors_hooks(note, lambda tensor: tensor):
        rule(q, k, v)
    return max(sizes)


@pytest.mark.parametrize("name", ROWS)
def test_no_tensor_of_the_size_of_the_matrix_is_kept(name):
    for side in (16, 32):
        shape = shape_of((side, side), dim=8, heads=1)
        rule = rule_of(name, shape, linformer_rank=16)
        assert largest_kept(rule, shape) < shape.num_tokens**2 / 4
    shape = shape_of((16, 16), dim=8, heads=1)
    assert largest_kept(rule_of("softmax", shape), shape) >= shape.num_tokens**2, "a control"


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("prefix", [1, 3])
def test_attention_of_the_first_token_alone_is_equal(name, prefix):
    shape = shape_of((4, 4), prefix)
    layer = SelfAttention(shape, rule_of(name, shape))
    x = torch.randn(2, shape.num_tokens, 16)
    assert_close(layer.forward_first(x), layer(x)[:, :1], atol=1e-5, rtol=1e-4)
