"""Properties of the kernels for AMX: float sums, visible NaN, no dependence on threads."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from tests.core.ops.gradients import error, gradients
from vitcli.core.ops.attention import self_attention
from vitcli.core.ops.native.amx import functions
from vitcli.core.ops.native.compiled import Kernels
from vitcli.runner.machine.kernels import load_kernels

BF16 = torch.bfloat16


@pytest.fixture
def kernels(native_machine) -> Kernels:
    return load_kernels("amx", "-march=native")


@pytest.mark.parametrize(("tokens", "heads", "dim"), [(65, 4, 16), (33, 3, 18)])
def test_attention_is_more_exact_than_torch(tokens, heads, dim, kernels, two_threads):
    qkv = (2 * torch.randn(5, tokens, 3 * heads * dim)).to(BF16)
    grad = torch.randn(5, tokens, heads * dim).to(BF16)
    scale = dim**-0.5

    def plain(x):
        return self_attention(x, heads, scale, fused=False)

    def native(x):
        return functions.Attention.apply(x, heads, scale, kernels)

    exact = gradients(plain, [qkv.double()], grad)
    torchs = gradients(plain, [qkv], grad)
    ours = gradients(native, [qkv], grad)
    for mine, other, true in zip(ours, torchs, exact, strict=True):
        assert error(mine, true) <= 1.05 * error(other, true) + 1e-6


@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize(("inputs", "outputs"), [(16, 16), (48, 80), (400, 48)])
def test_a_linear_layers_gradients_are_sums_in_float(rows, inputs, outputs, kernels, two_threads):
    x, grad = torch.randn(rows, inputs).to(BF16), torch.randn(rows, outputs).to(BF16)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs)

    def native(x, w, b):
        return functions.Linear.apply(x, w, b, kernels)

    out, grad_x, grad_w, grad_b = gradients(native, [x, weight, bias], grad)
    assert_close(out, F.linear(x, weight.to(BF16), bias.to(BF16)))
    assert_close(grad_x, grad @ weight.to(BF16))
    assert_close(grad_w, grad.float().T @ x.float(), rtol=1e-4, atol=1e-4)
    assert_close(grad_b, grad.float().sum(0), rtol=1e-4, atol=1e-4)
    torch.set_num_threads(1)
    alone = gradients(native, [x, weight, bias], grad)[2:]
    assert_close([grad_w, grad_b], alone, rtol=0, atol=0)  # for any number of threads


def test_infinity_and_nan_reach_the_output(kernels):
    """Infinity and NaN must reach the output, so that a diverged run is noticed."""
    for bad in (float("nan"), float("inf")):
        qkv = torch.randn(2, 20, 48).to(BF16)
        qkv[0, 3, 5] = bad
        assert not functions.Attention.apply(qkv, 1, 0.25, kernels)[0].isfinite().all()
        x = torch.tensor([[1.0, bad, 2.0, 3.0]])
        one = torch.ones(4)
        assert not functions.AddNorm.apply(x, None, one, one, 1e-6, kernels)[1].isfinite().all()
    assert functions.Gelu.apply(torch.tensor([float("nan")]).to(BF16), kernels).isnan().all()


def test_a_row_whose_variance_overflows_is_nan(kernels):
    """It must not become the bias, which would hide a divergence."""
    one, x = torch.ones(4), torch.tensor([[1.0, -1e30, 2.0, 1e30]])
    assert functions.AddNorm.apply(x, None, one, one, 1e-6, kernels)[1].isnan().all()
