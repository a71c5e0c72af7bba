"""The native backend for bf16: ops computed by compiled kernels, under bf16 autocast on a CPU.

The kernels are the C files of this folder. They compute with AMX-BF16 and round each result once;
sums and exponentials are float. A call that they do not support is computed by the plain
definition.
Axes: B batch, N tokens, D embed_dim, h num_heads, d = D / h, R rows (images x tokens).
"""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import PLAIN, Backend, InnerLayer, self_attention, split_heads
from vitcli.core.ops.native.compiled import Kernels, allocate_scratch, call_function

MAX_TOKENS = 320
"""Maximum number of tokens. The scores of one head, with gradients 1.6 MB for 320 tokens, must fit
into the cache of a core."""


def attention_library(kernels: Kernels, tokens: int, num_heads: int, width: int) -> ctypes.CDLL:
    head_dim = width // num_heads
    return kernels.compiled("attention", TOKENS=tokens, HEADS=num_heads, HEAD_DIM=head_dim)


class Attention(torch.autograd.Function):
    """Attention, softmax(scale q k^T) v of all heads: qkv (B, N, 3 D) -> (B, N, D)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, num_heads: int, scale: float, kernels: Kernels) -> Tensor:
        batch, tokens, width = qkv.shape
        library = attention_library(kernels, tokens, num_heads, width // 3)
        out = qkv.new_empty(batch, tokens, width // 3)
        norms = torch.empty(batch, num_heads, 2, tokens)
        scratch = allocate_scratch(library.forward_bytes)
        call_function(library.forward, qkv, out, norms, batch, scale, scratch)
        ctx.save_for_backward(qkv, out, norms)
        ctx.compiled, ctx.scale = library, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        qkv, out, norms = ctx.saved_tensors
        grad_qkv, scratch = torch.empty_like(qkv), allocate_scratch(ctx.compiled.backward_bytes)
        arguments = (qkv, out, norms, grad.contiguous(), grad_qkv, len(qkv), ctx.scale, scratch)
        call_function(ctx.compiled.backward, *arguments)
        return grad_qkv, None, None, None


class Linear(torch.autograd.Function):
    """A linear layer, x w^T + b, from bf16 x (..., in) and float w (out, in) and b (out,).

    The output (..., out) is bf16. torch computes it, and the gradient of x. The gradients of w and
    b are float sums over all rows, which are never rounded. ``in`` and ``out`` are multiples of 16.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kernels: Kernels
    ) -> Tensor:
        half = weight.to(x.dtype)
        ctx.save_for_backward(x, half)
        ctx.compiled, ctx.has_bias = kernels.compiled("linear"), bias is not None
        half_bias = None if bias is None else bias.to(x.dtype)
        # F.linear fills the output with the bias in a pass of its own; this function does not.
        return torch.ops.mkldnn._linear_pointwise(x, half, half_bias, "none", [], "")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        x, half = ctx.saved_tensors
        rows, grad = x.flatten(0, -2).contiguous(), grad.flatten(0, -2).contiguous()
        grad_x = (grad @ half).view_as(x) if ctx.needs_input_grad[0] else None
        weight, bias = torch.empty(half.shape), torch.empty(len(half))
        scratch = allocate_scratch(ctx.compiled.scratch_bytes, rows.shape[1])
        arguments = (grad, rows, weight, bias, len(rows), *half.shape, scratch)
        call_function(ctx.compiled.weight_gradient, *arguments)
        return grad_x, weight, bias if ctx.has_bias else None, None


class AddNorm(torch.autograd.Function):
    """Sum and LayerNorm, (x + branch, LayerNorm(x + branch)), each (..., D).

    x and the sum are float. The branch (or None) and the normalised rows are bf16.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        branch: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernels: Kernels,
    ) -> tuple[Tensor, Tensor]:
        width = x.shape[-1]
        library = kernels.compiled("norm", WIDTH=width)
        total = x if branch is None else torch.empty_like(x)
        normal = torch.empty_like(x, dtype=torch.bfloat16)
        statistics = torch.empty(*x.shape[:-1], 2)
        rows = x.numel() // width
        arguments = (x, branch, weight, bias, total, normal, statistics, rows, eps)
        call_function(library.forward, *arguments)
        ctx.save_for_backward(total, weight, statistics)
        ctx.compiled, ctx.has_branch = library, branch is not None
        ctx.set_materialize_grads(False)
        return total, normal

    @staticmethod
    def backward(
        ctx: Any, grad_total: Tensor | None, grad_normal: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, weight, statistics = ctx.saved_tensors
        width = total.shape[-1]
        if grad_normal is None:
            grad_normal = torch.zeros_like(total, dtype=torch.bfloat16)
        grad_x = torch.empty_like(total)
        branch = torch.empty_like(grad_normal) if ctx.has_branch else None
        partial = torch.zeros(torch.get_num_threads(), 2, width)
        given = (grad_normal.contiguous(), None if grad_total is None else grad_total.contiguous())
        arguments = (*given, total, statistics, weight, grad_x, branch, partial)
        call_function(ctx.compiled.backward, *arguments, total.numel() // width)
        slopes, shifts = partial.sum(0)
        return grad_x, branch, slopes, shifts, None, None


class Gelu(torch.autograd.Function):
    """GELU, x Phi(x), for tensors of any shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Kernels) -> Tensor:
        ctx.compiled = kernels.compiled("gelu")
        ctx.save_for_backward(x)
        out = torch.empty_like(x)
        call_function(ctx.compiled.forward, x, out, x.numel())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        grad_x = torch.empty_like(x)
        call_function(ctx.compiled.backward, grad.contiguous(), x, grad_x, x.numel())
        return grad_x, None


def amx_backend(kernels: Kernels) -> Backend:
    return Backend(
        name="native",
        linear=partial(linear, kernels),
        gelu=partial(gelu, kernels),
        add_norm=partial(add_norm, kernels),
        attention=partial(attention, kernels),
        postpones_sums=is_active,
        prepare=partial(open_libraries, kernels),
    )


def is_active(x: Tensor) -> bool:
    """Return whether the call is on a CPU under bf16 autocast."""
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
    )


def linear(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x w^T + b. One pass over the rows computes float gradients of weight and bias."""
    if not (is_active(x) and fits_linear(*weight.shape)):
        return PLAIN.linear(x, weight, bias)
    return Linear.apply(x.to(torch.bfloat16), weight, bias, kernels)


def gelu(kernels: Kernels, x: Tensor) -> Tensor:
    """Return GELU of x. Output and gradient need one pass each."""
    if not is_active(x) or x.dtype is not torch.bfloat16 or x.ndim == 4:
        return PLAIN.gelu(x)  # it keeps the memory layout of 4-D maps
    return Gelu.apply(x.contiguous(), kernels)


def add_norm(
    kernels: Kernels, x: Tensor, branch: Tensor | None, norm: nn.Module
) -> tuple[Tensor, Tensor]:
    """Return the sum in float and its normalised rows in bf16, computed in one pass."""
    if not (is_active(x) and type(norm) is nn.LayerNorm and norm.bias is not None):
        return PLAIN.add_norm(x, branch, norm)
    if branch is not None:
        branch = branch.to(torch.bfloat16).contiguous()
    x = x.float().contiguous()
    return AddNorm.apply(x, branch, norm.weight, norm.bias, norm.eps, kernels)


def attention(
    kernels: Kernels,
    qkv: Tensor,
    num_heads: int,
    scale: float,
    turn: Callable[[Tensor], Tensor] | None,
    fused: bool,
) -> Tensor:
    """Return attention from the output of the fused projection, without storing the weights."""
    if not (is_active(qkv) and fits_attention(qkv.shape[1], num_heads, qkv.shape[2] // 3)):
        return self_attention(qkv, num_heads, scale, turn, fused)
    if turn is not None:  # the kernel needs rotated q and k in one tensor with v
        q, k, v = split_heads(qkv, num_heads)
        parts = [turn(q).to(v.dtype), turn(k).to(v.dtype), v]
        qkv = torch.stack([part.transpose(1, 2) for part in parts], dim=2).flatten(2)
    return Attention.apply(qkv.to(torch.bfloat16), num_heads, scale, kernels)


def fits_linear(num_outputs: int, num_inputs: int) -> bool:
    return num_outputs % 16 == 0 and num_inputs % 16 == 0


def fits_attention(num_tokens: int, num_heads: int, width: int) -> bool:
    return width // num_heads % 2 == 0 and num_tokens <= MAX_TOKENS


def open_libraries(kernels: Kernels, model: nn.Module) -> None:
    """Compile what a model may call, so that no step waits for the compiler or fails with it."""
    kernels.compiled("linear")
    kernels.compiled("gelu")
    for norm in model.modules():
        if type(norm) is nn.LayerNorm:
            kernels.compiled("norm", WIDTH=norm.normalized_shape[-1])
    inner: list[Any] = [layer for layer in model.modules() if isinstance(layer, InnerLayer)]
    for layer in inner:
        if getattr(layer, "softmax_scale", None) is not None:
            sizes = layer.num_tokens, layer.num_heads, layer.qkv.out_features // 3
            if fits_attention(*sizes):
                attention_library(kernels, *sizes)
