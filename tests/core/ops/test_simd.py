"""The kernels of whole branches equal the plain definition, with the vectors of every kind of CPU.

Vectors of 4 floats, as NEON has, run on every processor; those of 8 and 16 need AVX2 and AVX-512.
The kernels called ``half`` multiply bf16 numbers, which needs AVX512-BF16.
The exact results are computed in float64 by formulas in this file.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.ops.conftest import error, gradients
from vitcli.core.ops.backend import Backend
from vitcli.core.ops.native.simd.backend import simd_backend
from vitcli.runner.machine.kernels import HALF, SIMD, NoKernelsError, find_compiler, load_kernels

EPS = 1e-6
PROCESSOR = Path("/proc/cpuinfo")
FEATURES = set(PROCESSOR.read_text().split()) if PROCESSOR.exists() else set()
NEEDS = {
    "neon": (),
    "avx2": ("avx2", "fma"),
    "avx512": ("avx512f", "avx512bw", "avx512dq"),
    "half": ("avx512f", "avx512bw", "avx512dq", "avx512_bf16"),
}
FLAGS = {**SIMD, "half": HALF}


@pytest.fixture(params=NEEDS)
def backend(request, here, two_threads) -> Backend:
    missing = [name for name in NEEDS[request.param] if name not in FEATURES]
    if missing:
        pytest.skip(f"kernels for {request.param}: this CPU has no {', '.join(missing)}")
    try:
        find_compiler()
    except NoKernelsError as error:
        pytest.skip(f"kernels for {request.param}: {error}")
    return replace(simd_backend(load_kernels("simd", *FLAGS[request.param])), name=request.param)


def precision_of(backend: Backend) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=backend.name == "half")


def norm_of(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return x if weight is None else F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def with_tensors(layer: Any, weight: Tensor, bias: Tensor | None) -> Any:
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias
    return layer


def as_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    return with_tensors(nn.Linear(1, 1), weight, bias)


Weights = list[Any]
"""Weight and bias of the norm and of two layers; None for those that are absent."""


def weights_of(shapes: list[tuple[int, int]], has_norm: bool, has_bias: bool) -> Weights:
    width = shapes[0][1]
    norm: Weights = [1 + torch.randn(width) / 2, torch.randn(width)] if has_norm else [None, None]
    layers = [
        [torch.randn(shape) / shape[1] ** 0.5, torch.randn(shape[0]) if has_bias else None]
        for shape in shapes
    ]
    return norm + layers[0] + layers[1]


Case = tuple[Tensor, Weights, Callable[..., Any], Callable[..., Any]]
"""Tokens, weights, a function that calls a backend, and the exact result."""


def caller(op: str, *options: Any) -> Callable[..., Any]:
    """Return a function that calls an op of a backend on tokens and weights."""

    def call(backend: Backend, x: Tensor, weights: Weights) -> Tensor | None:
        norm: nn.Module = nn.Identity()
        if weights[0] is not None:
            norm = with_tensors(nn.LayerNorm(1, EPS), *weights[:2])
        layers = as_linear(*weights[2:4]), as_linear(*weights[4:])
        with precision_of(backend):
            return getattr(backend, op)(x, norm, *layers, *options)

    return call


def attention(batch: int, tokens: int, heads: int, width: int, queries: int, *flags: bool) -> Case:
    (adds, norm, bias), scale = flags, 0.7 * (width // heads) ** -0.5
    call = caller("attention_branch", heads, scale, adds, queries)

    def truth(x: Tensor, weights: Weights) -> Tensor:
        qkv = F.linear(norm_of(x, *weights[:2]), *weights[2:4])
        q, k, v = (part.unflatten(2, (heads, -1)) for part in qkv.chunk(3, dim=2))
        shares = (scale * torch.einsum("bihd,bjhd->bhij", q[:, :queries], k)).softmax(-1)
        out = F.linear(torch.einsum("bhij,bjhd->bihd", shares, v).flatten(2), *weights[4:])
        return x[:, :queries] + out if adds else out

    shapes = [(3 * width, width), (width, width)]
    return torch.randn(batch, tokens, width), weights_of(shapes, norm, bias), call, truth


def ffn(batch: int, tokens: int, width: int, hidden: int, adds: bool, norm: bool) -> Case:
    def truth(x: Tensor, weights: Weights) -> Tensor:
        inner = F.gelu(F.linear(norm_of(x, *weights[:2]), *weights[2:4]))
        return F.linear(inner, *weights[4:]) + (x if adds else 0)

    shapes = [(hidden, width), (width, hidden)]
    call = caller("ffn_branch", adds)
    return torch.randn(batch, tokens, width), weights_of(shapes, norm, True), call, truth


BRANCHES: dict[str, tuple[Callable[..., Case], list[tuple[Any, ...]]]] = {
    "attention_branch": (attention, [
        (3, 65, 4, 64, 65, True, True, True),
        (2, 65, 8, 400, 1, True, True, True),
        (1, 1, 1, 16, 1, True, True, True),
        (4, 37, 8, 80, 20, False, True, False),
        (2, 33, 3, 48, 33, True, False, True),
        (1, 257, 2, 32, 257, False, False, False),
    ]),
    "ffn_branch": (ffn, [
        (4, 65, 64, 64, True, True), (1, 1, 16, 16, False, True),
        (7, 31, 48, 80, True, False), (2, 100, 400, 512, False, False),
    ]),
}  # fmt: skip


def gradients_of(function: Callable[..., Any], x: Tensor, weights: Weights, grad: Tensor) -> Any:
    given = [tensor for tensor in weights if tensor is not None]

    def on_tensors(x: Tensor, *found: Tensor) -> Tensor:
        rest = iter(found)
        return function(x, [None if tensor is None else next(rest) for tensor in weights])

    return gradients(on_tensors, [x, *given], grad)


def to_double(weights: Weights) -> Weights:
    return [None if tensor is None else tensor.double() for tensor in weights]


@pytest.mark.parametrize(
    ("op", "sizes"), [(op, sizes) for op, (_, table) in BRANCHES.items() for sizes in table]
)
def test_a_branch_equals_the_plain_definition(backend, op, sizes):
    x, weights, call, truth = BRANCHES[op][0](*sizes)
    exact = truth(x.double(), to_double(weights))
    grad = torch.randn(exact.shape)
    true = gradients_of(truth, x.double(), to_double(weights), grad)
    with precision_of(backend):
        torchs = gradients_of(truth, x, weights, grad)
    ours = gradients_of(lambda *given: call(backend, *given), x, weights, grad)
    factor, rest = (1.3, 1e-3) if backend.name == "half" else (2, 4e-7)  # float rounds by 6e-8
    for mine, plain, right in zip(ours, torchs, true, strict=True):
        assert mine.dtype is torch.float32
        assert error(mine, right) < factor * error(plain, right) + rest


@pytest.mark.parametrize("op", BRANCHES)
def test_tokens_may_lie_apart_in_memory(backend, op):
    x, weights, call, _ = BRANCHES[op][0](*BRANCHES[op][1][0])
    apart = torch.randn(*x.shape[:2], 2 * x.shape[2])[..., ::2].copy_(x)
    grad = torch.randn(call(backend, x, weights).shape)
    spread = grad.mT.contiguous().mT
    found = gradients_of(lambda *given: call(backend, *given), apart, weights, spread)
    expected = gradients_of(lambda *given: call(backend, *given), x, weights, grad)
    assert not apart.is_contiguous()
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("op", BRANCHES)
def test_results_repeat_and_an_image_depends_on_itself_only(backend, op):
    """The last call computes no gradients."""
    x, weights, call, _ = BRANCHES[op][0](*BRANCHES[op][1][0])
    grad = torch.randn(call(backend, x, weights).shape)
    first, second = (
        gradients_of(lambda *given: call(backend, *given), x, weights, grad) for _ in range(2)
    )
    assert_close(first, second, rtol=0, atol=0)
    changed = x.clone()
    changed[1] += 1
    same = (call(backend, changed, weights) == first[0]).flatten(1).all(1)
    assert same.tolist() == [True, False] + [True] * (len(x) - 2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("op", BRANCHES)
def test_infinity_and_nan_reach_the_output_of_their_image(backend, op, value):
    x, weights, call, _ = BRANCHES[op][0](*BRANCHES[op][1][0])
    x[0, 0, 0] = value
    found = call(backend, x, [None, None, *weights[2:]])
    assert not found[0].isfinite().all() or value == 1e30
    assert found[1:].isfinite().all()


@pytest.mark.parametrize("largest", [1e4, 1e10, 1e20])
def test_scores_of_any_size_have_the_weights_and_gradients_of_torch(backend, largest):
    """Each query's best key is far ahead, so rounding changes no weight."""
    tokens, width = 9, 16
    qkv = torch.cat([torch.eye(width)] * 3)
    weights: Weights = [None, None, qkv, None, torch.eye(width), None]
    x = torch.zeros(1, tokens, width)
    x[0, :, :tokens] = torch.eye(tokens) * largest**0.5 * torch.linspace(1, 2, tokens)
    *_, call, truth = attention(1, tokens, 1, width, tokens, False, False, False)
    grad = torch.randn(truth(x, weights).shape)
    ours = gradients_of(lambda *given: call(backend, *given), x, weights, grad)
    exact = gradients_of(truth, x.double(), to_double(weights), grad)
    for mine, right in zip(ours, exact, strict=True):
        size = right.abs().max()
        assert_close(mine.double() / size, right / size, rtol=0, atol=0.02)


@pytest.mark.parametrize("op", BRANCHES)
@pytest.mark.parametrize("largest", [1e10, 1e20, 1e38, float("nan")])
def test_a_norm_of_large_rows_is_finite_only_where_torch_is(backend, op, largest):
    """A row whose variance overflows is a divergence, and NaN shows it."""
    x, weights, call, truth = BRANCHES[op][0](*BRANCHES[op][1][0])
    x[0] *= largest
    grad = torch.randn(truth(x, weights).shape)
    ours, torchs = (
        gradients_of(function, x, weights, grad)
        for function in (lambda *given: call(backend, *given), truth)
    )
    for mine, right in zip(ours, torchs, strict=True):
        assert mine.isfinite().all() == right.isfinite().all()
    assert ours[0][0].isfinite().any() == (largest < 1e20)  # torch may keep a few rows
    assert ours[0][1:].isfinite().all()
    if torchs[0].isfinite().all():
        assert error(ours[0], torchs[0].double()) < (1e-2 if backend.name == "half" else 1e-5)


def test_gelu_is_exact_from_its_tail_to_zero(backend):
    width = 16
    x = torch.linspace(-12, 12, 60 * width).view(1, 60, width)
    eye, zero = torch.eye(width), torch.zeros(width)
    found = ffn(1, 1, width, width, False, False)[2](backend, x, [None, None, eye, zero, eye, zero])
    rtol, atol = (1e-2, 1e-3) if backend.name == "half" else (2e-6, 1e-6)
    assert_close(found.double(), F.gelu(x.double()), rtol=rtol, atol=atol)


def test_unsupported_calls_are_left_to_the_layers(backend):
    for make, table in BRANCHES.values():
        x, weights, call, _ = make(*table[0])
        assert call(backend, x, weights) is not None
        assert call(backend, x.double(), to_double(weights)) is None
        assert call(backend, x.to("meta"), weights) is None
        other = replace(backend, name="avx512" if backend.name == "half" else "half")
        assert call(other, x, weights) is None  # in the other precision
        half = call(backend, x.bfloat16(), weights)
        assert half.dtype is torch.float32 if backend.name == "half" else half is None
    x, weights, call, _ = ffn(2, 5, 24, 32, True, True)
    assert call(backend, x, weights) is None
