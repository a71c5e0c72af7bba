"""The native backend of whole residual branches, in fp32 or, on CPUs with AVX512-BF16, in bf16.

A call that the kernels do not support returns None, and the layers of the branch compute it.
Axes: B batch, N tokens, D embed_dim.
"""

import ctypes
from functools import partial

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import Backend
from vitcli.core.ops.native.compiled import Kernels
from vitcli.core.ops.native.simd import functions
from vitcli.core.ops.native.simd.functions import number_type

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
    found: Tensor = functions.AttentionBranch.apply(
        library, settings, x.float().contiguous(), *weights
    )
    return found


def ffn_branch(
    kernels: Kernels, x: Tensor, norm: nn.Module, fc1: nn.Linear, fc2: nn.Linear, adds: bool
) -> Tensor | None:
    library = kernels.compiled(SOURCE)
    if not supports(library, x, norm, fc1, fc2):
        return None
    weight, bias, eps = norm_tensors(norm)
    weights = (weight, bias, fc1.weight, fc1.bias, fc2.weight, fc2.bias)
    found: Tensor = functions.FfnBranch.apply(
        library, (adds, eps), x.float().contiguous(), *weights
    )
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
