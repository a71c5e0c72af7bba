"""The native backend of whole residual branches, in fp32 or, on CPUs with AVX512-BF16, in bf16.

A call that the kernels do not support returns None, and the layers of the branch compute it.
Axes: B batch, N tokens, D embed_dim.
"""

import ctypes
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vitcli.core.ops.backend import Backend
from vitcli.core.ops.native.compiled import Kernels, allocate_scratch, call_function, count_bytes

PANEL = 32
"""A multiple of the columns of a packed panel, on every processor."""


def number_type(library: ctypes.CDLL) -> torch.dtype:
    """Return the type of the tensors that the library stores for the backward pass."""
    return torch.bfloat16 if count_bytes(library.number_bytes) == 2 else torch.float32


def allocate_packs(*shapes: tuple[int, int]) -> Tensor:
    return torch.empty(sum((rows + PANEL) * (columns + PANEL) for rows, columns in shapes))


class AttentionBranch(torch.autograd.Function):
    """x + proj(attention(norm(x))) of the first M tokens: x (B, N, D) -> (B, M, D).

    The tensors are x, the norm's weight and bias (None without a norm), and weight and bias of the
    layers qkv (3 D, D) and proj (D, D). Biases may be None.
    """

    @staticmethod
    def forward(
        ctx: Any,
        library: ctypes.CDLL,
        settings: tuple[int, int, bool, float, float],
        *tensors: Tensor | None,
    ) -> Tensor:
        x, *weights = tensors
        assert x is not None
        queries, heads, adds, eps, scale = settings
        batch, tokens, width = x.shape
        y = x.new_empty(batch, queries, width)
        stored: list[Tensor | None] = [None, None, None]
        if any(ctx.needs_input_grad):
            numbers = number_type(library)
            stored[0] = x.new_empty(batch, tokens, 3 * width, dtype=numbers)  # qkv
            stored[1] = torch.empty_like(y, dtype=numbers)  # output of the heads
            stored[2] = x.new_empty(batch, heads, queries, 2)  # statistics of softmax
        sizes = (tokens, queries, width, heads)
        scratch = allocate_scratch(library.attention_bytes, *sizes, 0)
        packs = allocate_packs(*[(width, width)] * 4)
        arguments = (x, *weights, y, *stored, packs, scratch, batch, *sizes, adds, eps, scale)
        call_function(library.attention_forward, *arguments)
        ctx.save_for_backward(*tensors, *stored)
        ctx.settings, ctx.compiled = settings, library
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, norm_weight, norm_bias, qkv, qkv_bias, proj, proj_bias, *stored = ctx.saved_tensors
        queries, heads, adds, eps, scale = ctx.settings
        batch, tokens, width = x.shape
        sizes = (tokens, queries, width, heads)
        weights = (norm_weight, norm_bias, qkv, proj)
        grad_x, grads = torch.empty_like(x), x.new_empty((4 * width + 6) * width)
        scratch = allocate_scratch(ctx.compiled.attention_bytes, *sizes, 1)
        packs = allocate_packs(*[(width, width)] * 4)
        outputs = (*stored, grad_x, grads, packs, scratch)
        arguments = (grad.contiguous(), x, *weights, *outputs, batch, *sizes, adds, eps, scale)
        call_function(ctx.compiled.attention_backward, *arguments)
        shapes = [(width,), (width,), qkv.shape, (3 * width,), proj.shape, (width,)]
        given = (norm_weight, norm_bias, qkv, qkv_bias, proj, proj_bias)
        return None, None, grad_x, *split_gradients(grads, shapes, given)


class FfnBranch(torch.autograd.Function):
    """x + fc2(gelu(fc1(norm(x)))): x (..., D) -> (..., D).

    The tensors are x, the norm's weight and bias (None without a norm), and weight and bias of the
    layers fc1 (F, D) and fc2 (D, F).
    """

    @staticmethod
    def forward(
        ctx: Any, library: ctypes.CDLL, settings: tuple[bool, float], *tensors: Tensor | None
    ) -> Tensor:
        x, *weights = tensors
        assert x is not None
        adds, eps = settings
        sizes = (x.shape[-1], len(tensors[3]))  # type: ignore[arg-type]
        rows, y = x.numel() // sizes[0], torch.empty_like(x)
        before = None
        if any(ctx.needs_input_grad):
            before = x.new_empty(rows, sizes[1], dtype=number_type(library))
        scratch, packs = (
            allocate_scratch(library.ffn_bytes, *sizes, 0),
            allocate_packs(sizes, sizes),
        )
        arguments = (x, *weights, y, before, packs, scratch, rows, *sizes, adds, eps)
        call_function(library.ffn_forward, *arguments)
        ctx.save_for_backward(*tensors, before)
        ctx.settings, ctx.compiled = settings, library
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *given, before = ctx.saved_tensors
        norm_weight, norm_bias, fc1, _, fc2, _ = given
        adds, eps = ctx.settings
        hidden, width = fc1.shape
        grad_x = torch.empty_like(x)
        shapes = [(width,), (width,), fc1.shape, (hidden,), fc2.shape, (width,)]
        grads = x.new_empty(3 * width + hidden + 2 * fc1.numel())
        scratch = allocate_scratch(ctx.compiled.ffn_bytes, width, hidden, 1)
        packs = allocate_packs(fc1.shape, fc2.shape)
        outputs = (before, grad_x, grads, packs, scratch)
        weights = (norm_weight, norm_bias, fc1, fc2)
        sizes = (x.numel() // width, width, hidden)
        arguments = (grad.contiguous(), x, *weights, *outputs, *sizes, adds, eps)
        call_function(ctx.compiled.ffn_backward, *arguments)
        return None, None, grad_x, *split_gradients(grads, shapes, given)


def split_gradients(
    grads: Tensor, shapes: Sequence[Sequence[int]], given: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradient of each given tensor from a flat tensor with all gradients."""
    parts = grads.split([torch.Size(shape).numel() for shape in shapes])
    return [
        None if tensor is None else part.view(tensor.shape)
        for part, tensor in zip(parts, given, strict=True)
    ]


SOURCE = "branches"


def simd_backend(kernels: Kernels) -> Backend:
    """Return the backend with the branches of these kernels, whose library is opened here."""
    kernels.compiled(SOURCE)
    return Backend(
        name="native",
        attention_branch=partial(attention_branch, kernels),
        ffn_branch=partial(ffn_branch, kernels),
    )


def attention_branch(
    kernels: Kernels,
    x: Tensor,
    norm: nn.Module,
    qkv: nn.Linear,
    proj: nn.Linear,
    num_heads: int,
    scale: float,
    adds: bool,
    num_queries: int,
) -> Tensor | None:
    width, library = x.shape[-1], kernels.compiled(SOURCE)
    if qkv.weight.shape != (3 * width, width) or not supports(library, x, norm, qkv, proj):
        return None
    if width // num_heads % 2 and number_type(library) is torch.bfloat16:
        return None
    weight, bias, eps = norm_tensors(norm)
    settings = (num_queries, num_heads, adds, eps, scale)
    weights = (weight, bias, qkv.weight, qkv.bias, proj.weight, proj.bias)
    found: Tensor = AttentionBranch.apply(library, settings, x.float().contiguous(), *weights)
    return found


def ffn_branch(
    kernels: Kernels, x: Tensor, norm: nn.Module, fc1: nn.Linear, fc2: nn.Linear, adds: bool
) -> Tensor | None:
    library = kernels.compiled(SOURCE)
    if not supports(library, x, norm, fc1, fc2):
        return None
    weight, bias, eps = norm_tensors(norm)
    weights = (weight, bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    found: Tensor = FfnBranch.apply(library, (adds, eps), x.float().contiguous(), *weights)
    return found


def supports(
    library: ctypes.CDLL, x: Tensor, norm: nn.Module, first: nn.Linear, second: nn.Linear
) -> bool:
    """Return whether the library computes a branch of these layers.

    Its products must have the precision of torch's: fp32, or bf16 under autocast. All weights must
    be float, and all widths multiples of 16.
    """
    is_autocast = torch.is_autocast_enabled("cpu")
    precision = torch.get_autocast_dtype("cpu") if is_autocast else torch.float32
    is_right = x.device.type == "cpu" and precision is number_type(library)
    is_float = all(t.dtype is torch.float32 for t in (first.weight, second.weight))
    fits = x.dtype in (torch.float32, precision) and is_float
    widths = (*first.weight.shape, *second.weight.shape)
    has_norm = type(norm) is nn.LayerNorm and norm.bias is not None
    is_known = has_norm or type(norm) is nn.Identity
    return is_right and fits and is_known and not any(width % 16 for width in widths)


def norm_tensors(norm: nn.Module) -> tuple[Tensor | None, Tensor | None, float]:
    return (
        (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else (None, None, 0.0)
    )
