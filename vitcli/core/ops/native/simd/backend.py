"""The native backend for fp32: whole residual branches on CPUs with AVX2, AVX-512 or NEON.

A call that the kernels do not support returns None, and the layers of the branch compute it.
Axes: B batch, N tokens, D embed_dim.
"""

from functools import partial

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import Backend
from vitcli.core.ops.native.library import Kernels
from vitcli.core.ops.native.simd import functions

SOURCE = "branches"


def simd_backend(kernels: Kernels) -> Backend:
    """Return the backend with the branches of these kernels."""
    return Backend(
        name="native",
        attention_branch=partial(attention_branch, kernels),
        ffn_branch=partial(ffn_branch, kernels),
        prepare=partial(open_library, kernels),
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
    width = x.shape[-1]
    if qkv.weight.shape != (3 * width, width) or not supports(x, norm, qkv, proj):
        return None
    weight, bias, eps = norm_tensors(norm)
    settings = (num_queries, num_heads, adds, eps, scale)
    weights = (weight, bias, qkv.weight, qkv.bias, proj.weight, proj.bias)
    found: Tensor = functions.AttentionBranch.apply(
        kernels.compiled(SOURCE), settings, x.contiguous(), *weights
    )
    return found


def ffn_branch(
    kernels: Kernels, x: Tensor, norm: nn.Module, fc1: nn.Linear, fc2: nn.Linear, adds: bool
) -> Tensor | None:
    if not supports(x, norm, fc1, fc2):
        return None
    weight, bias, eps = norm_tensors(norm)
    weights = (weight, bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    found: Tensor = functions.FfnBranch.apply(
        kernels.compiled(SOURCE), (adds, eps), x.contiguous(), *weights
    )
    return found


def supports(x: Tensor, norm: nn.Module, first: nn.Linear, second: nn.Linear) -> bool:
    """Return whether the kernels compute a branch of these layers.

    All numbers must be float, and all widths multiples of 16.
    """
    is_float = all(t.dtype is torch.float32 for t in (x, first.weight, second.weight))
    is_plain = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    widths = (*first.weight.shape, *second.weight.shape)
    has_norm = type(norm) is nn.LayerNorm and norm.bias is not None
    is_known = has_norm or type(norm) is nn.Identity
    return is_float and is_plain and is_known and not any(width % 16 for width in widths)


def norm_tensors(norm: nn.Module) -> tuple[Tensor | None, Tensor | None, float]:
    return (
        (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else (None, None, 0.0)
    )


def open_library(kernels: Kernels, op: str, *sizes: int) -> None:
    """Compile and open the library, which has no fixed sizes."""
    if op in ("attention_branch", "ffn_branch"):
        kernels.compiled(SOURCE)
