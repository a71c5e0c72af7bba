"""The layers of a ViT, computed by compiled kernels where they run under bf16 autocast on a CPU.

``use_kernels`` turns a model's layers into these: the same parameters under the same names, and
outside of bf16 autocast (an evaluation in fp32, say) the same code as before.
Axes: B batch, N tokens, D embed_dim.
"""

import torch
from torch import Tensor, nn

from vitcli.core.native import functions
from vitcli.core.native.functions import Kernels
from vitcli.core.nn.attention import Position, SelfAttention
from vitcli.core.nn.attention_rule import HeadDimScale
from vitcli.core.nn.block import PreNorm
from vitcli.core.nn.softmax import Softmax

MAX_TOKENS = 320
"""Above, one head's scores no longer fit into a core's cache (320 x 320: 1.6 MB with gradients)."""
Stream = Tensor | tuple[Tensor, Tensor]
"""Tokens; or tokens and the branch that is still to be added to them, by the next norm."""


def is_active(x: Tensor) -> bool:
    """Whether this is the arithmetic that the kernels know."""
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") is torch.bfloat16
    )


class NativeLinear(nn.Linear):
    """Weight and bias gradients in one pass over the rows, without rounding them to bf16."""

    kernels: Kernels

    def forward(self, x: Tensor) -> Tensor:
        if not is_active(x):
            return super().forward(x)
        half = x.to(torch.bfloat16)
        return functions.Linear.apply(half, self.weight, self.bias, self.kernels)


class NativeLayerNorm(nn.LayerNorm):
    """LayerNorm to bf16, which adds a branch on the way where one is pending."""

    kernels: Kernels

    def forward(self, stream: Stream) -> Tensor:
        if isinstance(stream, Tensor) and not is_active(stream):
            return super().forward(stream)
        return self.add(stream)[1]

    def add(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """The sum in float and its normalised rows in bf16."""
        x, branch = (stream, None) if isinstance(stream, Tensor) else stream
        if branch is not None:
            branch = branch.to(torch.bfloat16).contiguous()
        x = x.float().contiguous()
        return functions.AddNorm.apply(x, branch, self.weight, self.bias, self.eps, self.kernels)


class NativeGelu(nn.GELU):
    """GELU and its gradient, each in one pass."""

    kernels: Kernels

    def forward(self, x: Tensor) -> Tensor:
        if not is_active(x) or x.dtype is not torch.bfloat16 or x.ndim == 4:
            return super().forward(x)  # a map of pixels keeps its memory layout there
        return functions.Gelu.apply(x.contiguous(), self.kernels)


class NativePreNorm(PreNorm):
    """Leaves its residual sum to the next norm, which has to read the tokens anyway.

    Only in training: elsewhere a block's output is looked at.
    """

    def forward(self, stream: Stream) -> Stream:  # type: ignore[override]
        if isinstance(stream, Tensor) and not (self.training and is_active(stream)):
            return super().forward(stream)
        x, normal = self.enter(stream)
        return x, self.after(self.inner(normal))

    def enter(self, stream: Stream) -> tuple[Tensor, Tensor]:
        if isinstance(stream, Tensor) and not (self.training and is_active(stream)):
            return super().enter(stream)
        assert isinstance(self.norm, NativeLayerNorm)
        return self.norm.add(stream)


class NativeSelfAttention(SelfAttention):
    """Attention that never stores its weights, straight from the fused projection's output."""

    kernels: Kernels

    def forward(self, x: Tensor) -> Tensor:
        if not is_active(x):
            return super().forward(x)
        qkv = self.qkv(x)
        if type(self.position) is not Position:  # turned queries and keys: pack them again
            q, k, v = (part.transpose(1, 2) for part in self.split(qkv))
            qkv = torch.stack([q.to(v.dtype), k.to(v.dtype), v], dim=2).flatten(2)
        assert isinstance(self.attend, Softmax)
        scale = self.attend.scale()
        out = functions.Attention.apply(qkv, self.num_heads, scale, self.kernels)
        return self.proj_drop(self.proj(out))


def _fits(module: nn.Module) -> type[nn.Module] | None:
    """The class that computes the same as the module, if there is one."""
    if type(module) is nn.Linear and not (module.in_features % 16 or module.out_features % 16):
        return NativeLinear
    if type(module) is nn.GELU and module.approximate == "none":
        return NativeGelu
    if type(module) is SelfAttention and _is_plain(module):
        return NativeSelfAttention
    return None


def _is_plain(attention: SelfAttention) -> bool:
    """Exact softmax with a constant scale, and positions that add no bias to the scores."""
    attend = attention.attend
    return (
        isinstance(attend, Softmax)
        and isinstance(attend.scale, HeadDimScale)
        and not attend.clamp
        and attend.dropout == 0
        and attention.position.bias() is None
        and attention.qkv.out_features // (3 * attention.num_heads) % 2 == 0
        and attention.num_tokens <= MAX_TOKENS
    )


def _norms(model: nn.Module) -> list[nn.LayerNorm]:
    """Those whose results only go into matrix products, which round them to bf16 anyway."""
    found = [module.norm for module in model.modules() if type(module) is PreNorm]
    return [norm for norm in (*found, getattr(model, "norm", None)) if type(norm) is nn.LayerNorm]


def _open_library(module: nn.Module, kernels: Kernels) -> None:
    if isinstance(module, SelfAttention):
        width = module.qkv.out_features // 3
        functions.attention_code(kernels, module.num_tokens, module.num_heads, width)
    elif isinstance(module, nn.LayerNorm):
        kernels.code("norm", WIDTH=module.normalized_shape[0])
    else:
        kernels.code("linear" if isinstance(module, nn.Linear) else "gelu")


def use_kernels(model: nn.Module, kernels: Kernels) -> None:
    """Let every layer that can be computed by kernels be so from now on, under bf16 autocast.

    All libraries are opened before the first layer is changed.
    """
    fitting = [(module, native) for module in model.modules() if (native := _fits(module))]
    fitting += [(norm, NativeLayerNorm) for norm in _norms(model)]
    for module, _ in fitting:
        _open_library(module, kernels)
    for module, native in fitting:
        module.__class__ = native
        module.kernels = kernels  # type: ignore[assignment]
    if not (hasattr(model, "blocks") and isinstance(model.norm, NativeLayerNorm)):
        return  # something else than a block or the last norm would be left a branch to add
    for module in model.modules():
        is_fused = type(module) is PreNorm and isinstance(module.norm, NativeLayerNorm)
        if is_fused and module.join is torch.add:
            module.__class__ = NativePreNorm
