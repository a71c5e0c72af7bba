"""Each backend computes the same as the plain definition, forward and backward."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.ops.conftest import error, gradients
from vitcli.core.ops.backend import PLAIN, Backend
from vitcli.core.ops.native.amx import backend as functions
from vitcli.core.ops.native.compiled import Kernels
from vitcli.runner.machine.kernels import BACKENDS, load_kernels

BF16 = torch.bfloat16
EPS = 1e-6


@dataclass
class Case:
    """One call of an op: its inputs, and a function that takes a backend, then the inputs."""

    inputs: list[Tensor]
    call: Callable[..., Any]
    fits: bool = True
    """Whether the native backend has a kernel for the sizes."""


def rounded(*shape: int) -> Tensor:
    """Return random floats that bf16 represents exactly."""
    return torch.randn(shape).to(BF16).float()


def linear(rows: int, inputs: int, outputs: int, has_bias: bool) -> Case:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    bias = [torch.randn(outputs)] * has_bias

    def call(backend: Backend, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return backend.linear(x, w, b)

    return Case([rounded(rows, inputs), weight, *bias], call, inputs % 16 == outputs % 16 == 0)


def gelu(*shape: int) -> Case:
    return Case([(3 * torch.randn(shape)).to(BF16)], lambda b, x: b.gelu(x), len(shape) < 4)


def add_norm(rows: int, width: int, has_branch: bool) -> Case:
    branch = [rounded(2, rows, width).to(BF16)] * has_branch

    def call(backend: Backend, x: Tensor, weight: Tensor, bias: Tensor, *branch: Tensor) -> Any:
        norm = nn.LayerNorm(width, eps=EPS)
        del norm.weight, norm.bias
        norm.weight, norm.bias = weight, bias  # type: ignore[assignment]
        total, normal = backend.add_norm(x, branch[0] if branch else None, norm)
        return (total, normal) if branch else normal

    scales = [1 + torch.randn(width) / 2, torch.randn(width)]
    return Case([5 + torch.randn(2, rows, width), *scales, *branch], call)


def turned(heads: Tensor) -> Tensor:
    """Return changed heads. This is not a rotation, so that a backend cannot skip it unnoticed."""
    return 1.5 * heads.roll(1, -1) + heads.flip(-2)


def attention(tokens: int, heads: int, dim: int, turns: bool = False) -> Case:
    turn, scale = (turned if turns else None), 0.7 * dim**-0.5

    def call(backend: Backend, qkv: Tensor) -> Tensor:
        return backend.attention(qkv, heads, scale, turn, False)

    qkv = torch.randn(3, tokens, 3 * heads * dim).to(BF16)
    return Case([qkv], call, dim % 2 == 0 and tokens <= 320)


OPS: dict[str, tuple[Callable[..., Case], list[tuple[Any, ...]]]] = {
    "linear": (linear, [
        (1, 16, 16, True), (31, 48, 80, True), (65, 400, 48, False),
        (33, 24, 48, True), (33, 48, 10, True),
    ]),
    "gelu": (gelu, [(1,), (3, 17), (2, 65, 100), (2, 8, 4, 4)]),
    "add_norm": (add_norm, [(37, 8, True), (37, 45, False), (37, 64, True), (37, 400, False)]),
    "attention": (attention, [
        (65, 4, 16), (65, 2, 50), (1, 1, 2), (33, 3, 18), (257, 2, 8),
        (65, 2, 16, True), (20, 2, 15), (321, 1, 16),
    ]),
}  # fmt: skip


@pytest.fixture
def native(native_machine) -> Backend:
    return BACKENDS["amx"]()


@pytest.mark.parametrize(
    ("op", "sizes"), [(op, sizes) for op, (_, table) in OPS.items() for sizes in table]
)
def test_a_backend_equals_the_plain_definition(native, op, sizes, two_threads):
    """The exact results are those of torch in float64."""
    case = OPS[op][0](*sizes)
    doubles = [x.double() for x in case.inputs]
    exact = case.call(PLAIN, *doubles)
    outputs = exact if isinstance(exact, tuple) else (exact,)
    grads = [torch.randn_like(out).to(BF16) for out in outputs]

    def under_autocast(which: Backend) -> list[Tensor]:
        with torch.autocast("cpu", BF16):
            return gradients(lambda *inputs: case.call(which, *inputs), case.inputs, *grads)

    true = gradients(lambda *inputs: case.call(PLAIN, *inputs), doubles, *grads)
    ours, torchs = under_autocast(native), under_autocast(PLAIN)
    for mine, plain, exact in zip(ours, torchs, true, strict=True):
        assert error(plain, exact) < 0.02
        # The rounding error of bf16 is 0.0017.
        assert error(mine, exact) < 1.1 * error(plain, exact) + 0.002
    assert has_kernel(case, native) == case.fits, "otherwise torch is compared with itself"


def has_kernel(case: Case, native: Backend) -> bool:
    """Return whether the native backend computes the call in another way than torch."""
    kinds = []
    for backend in (native, PLAIN):
        with torch.autocast("cpu", BF16):
            found = case.call(backend, *(x.requires_grad_() for x in case.inputs))
        last = found[-1] if isinstance(found, tuple) else found
        kinds.append(type(last.grad_fn).__module__)
    return kinds[0] != kinds[1]


@pytest.mark.parametrize("op", OPS)
def test_without_bf16_autocast_the_native_backend_is_plain(op, native):
    make, table = OPS[op]
    case = make(*table[0])
    found = [case.call(backend, *case.inputs) for backend in (native, PLAIN)]
    assert_close(*found, rtol=0, atol=0)


@pytest.fixture
def kernels(native_machine) -> Kernels:
    return load_kernels("amx", "-march=native")


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
    """A diverged run is noticed. A row whose variance overflows must not become the bias."""
    for bad in (float("nan"), float("inf")):
        qkv = torch.randn(2, 20, 48).to(BF16)
        qkv[0, 3, 5] = bad
        assert not functions.Attention.apply(qkv, 1, 0.25, kernels)[0].isfinite().all()
        x = torch.tensor([[1.0, bad, 2.0, 3.0]])
        one = torch.ones(4)
        assert not functions.AddNorm.apply(x, None, one, one, 1e-6, kernels)[1].isfinite().all()
    assert functions.Gelu.apply(torch.tensor([float("nan")]).to(BF16), kernels).isnan().all()
    x = torch.tensor([[1.0, -1e30, 2.0, 1e30]])
    assert functions.AddNorm.apply(x, None, one, one, 1e-6, kernels)[1].isnan().all()
