"""The native backend for bf16: ops computed by compiled kernels, under bf16 autocast on a CPU.

A call that the kernels do not support is computed by the plain definition.
Axes: B batch, N tokens, D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import PLAIN, Backend, self_attention, split_heads
from vitcli.core.ops.native.amx import functions
from vitcli.core.ops.native.compiled import Kernels

MAX_TOKENS = 320
"""Maximum number of tokens. The scores of one head, with gradients 1.6 MB for 320 tokens, must fit
into the cache of a core."""


def amx_backend(kernels: Kernels) -> Backend:
    """Return the backend with the ops of these kernels."""
    return Backend(
        name="native",
        linear=partial(linear, kernels),
        gelu=partial(gelu, kernels),
        add_norm=partial(add_norm, kernels),
        attention=partial(attention, kernels),
        postpones_sums=is_active,
        prepare=partial(open_library, kernels),
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
    return functions.Linear.apply(x.to(torch.bfloat16), weight, bias, kernels)


def gelu(kernels: Kernels, x: Tensor) -> Tensor:
    """Return GELU of x. Output and gradient need one pass each."""
    if not is_active(x) or x.dtype is not torch.bfloat16 or x.ndim == 4:
        return PLAIN.gelu(x)  # it keeps the memory layout of 4-D maps
    return functions.Gelu.apply(x.contiguous(), kernels)


def add_norm(
    kernels: Kernels, x: Tensor, branch: Tensor | None, norm: nn.Module
) -> tuple[Tensor, Tensor]:
    """Return the sum in float and its normalised rows in bf16, computed in one pass."""
    if not (is_active(x) and type(norm) is nn.LayerNorm and norm.bias is not None):
        return PLAIN.add_norm(x, branch, norm)
    if branch is not None:
        branch = branch.to(torch.bfloat16).contiguous()
    x = x.float().contiguous()
    return functions.AddNorm.apply(x, branch, norm.weight, norm.bias, norm.eps, kernels)


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
    return functions.Attention.apply(qkv.to(torch.bfloat16), num_heads, scale, kernels)


def fits_linear(num_outputs: int, num_inputs: int) -> bool:
    return num_outputs % 16 == 0 and num_inputs % 16 == 0


def fits_attention(num_tokens: int, num_heads: int, width: int) -> bool:
    return width // num_heads % 2 == 0 and num_tokens <= MAX_TOKENS


def open_library(kernels: Kernels, op: str, *sizes: int) -> None:
    """Compile and open the library for calls of an op with these sizes."""
    if op == "attention" and fits_attention(*sizes):
        functions.attention_library(kernels, *sizes)
    elif op == "add_norm":
        kernels.compiled("norm", WIDTH=sizes[0])
    elif op == "gelu" or (op == "linear" and fits_linear(*sizes)):
        kernels.compiled(op)
