"""The ops computed by compiled kernels, where they run under bf16 autocast on a CPU.

A call that the kernels do not know gets the plain definition.
Axes: B batch, N tokens, D embed_dim, h num_heads, d = D / h.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitcli.core.ops import plain
from vitcli.core.ops.attention import self_attention, split_heads
from vitcli.core.ops.backend import Backend
from vitcli.core.ops.native import functions
from vitcli.core.ops.native.functions import Kernels

MAX_TOKENS = 320
"""Above, one head's scores no longer fit into a core's cache (320 x 320: 1.6 MB with gradients)."""


def native_backend(kernels: Kernels) -> Backend:
    """The ops, computed by these kernels."""
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
    """Whether this is the arithmetic that the kernels know."""
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
    )


def linear(kernels: Kernels, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Weight and bias gradients come in one pass over the rows, without rounding them to bf16."""
    if not (is_active(x) and fits_linear(*weight.shape)):
        return plain.linear(x, weight, bias)
    return functions.Linear.apply(x.to(torch.bfloat16), weight, bias, kernels)


def gelu(kernels: Kernels, x: Tensor) -> Tensor:
    """GELU and its gradient, each in one pass."""
    if not is_active(x) or x.dtype is not torch.bfloat16 or x.ndim == 4:
        return plain.gelu(x)  # a map of pixels keeps its memory layout there
    return functions.Gelu.apply(x.contiguous(), kernels)


def add_norm(
    kernels: Kernels, x: Tensor, branch: Tensor | None, norm: nn.Module
) -> tuple[Tensor, Tensor]:
    """The sum in float and its normalised rows in bf16, in one pass."""
    if not (is_active(x) and type(norm) is nn.LayerNorm):
        return plain.add_norm(x, branch, norm)
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
    """Attention that never stores its weights, straight from the fused projection's output."""
    if not (is_active(qkv) and fits_attention(qkv.shape[1], num_heads, qkv.shape[2] // 3)):
        return self_attention(qkv, num_heads, scale, turn, fused)
    if turn is not None:  # pack the turned queries and keys again
        q, k, v = split_heads(qkv, num_heads)
        parts = [turn(q).to(v.dtype), turn(k).to(v.dtype), v]
        qkv = torch.stack([part.transpose(1, 2) for part in parts], dim=2).flatten(2)
    return functions.Attention.apply(qkv, num_heads, scale, kernels)


def fits_linear(num_outputs: int, num_inputs: int) -> bool:
    return num_outputs % 16 == 0 and num_inputs % 16 == 0


def fits_attention(num_tokens: int, num_heads: int, width: int) -> bool:
    return width // num_heads % 2 == 0 and num_tokens <= MAX_TOKENS


def open_library(kernels: Kernels, op: str, *sizes: int) -> None:
    """Compile and open what calls of these sizes need, before the first of them."""
    if op == "attention" and fits_attention(*sizes):
        functions.attention_code(kernels, *sizes)
    elif op == "add_norm":
        kernels.code("norm", WIDTH=sizes[0])
    elif op == "gelu" or (op == "linear" and fits_linear(*sizes)):
        kernels.code(op)
