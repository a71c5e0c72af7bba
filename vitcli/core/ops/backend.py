"""The ops of a model: their plain definitions, the backends, and the layers that call them.

Attention is softmax(scale q k^T) v, for separate q, k and v or for a fused projection. A new model
has the backend PLAIN, which calls the plain functions; every backend must compute the same.

A backend can compute a pre-norm branch in one call, or postpone the sum of the branch to the next
norm. Without such a backend, the code of the branch computes it.
Axes: B batch, N tokens (prefix first), M keys, or queries (the first tokens), D features,
h num_heads, d = D / h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Scale = float | Tensor
CLAMP = (-1e9, 1e4)
FUSED_BYTES = 16
"""On CUDA, torch has a fused kernel for a head if its features fill a multiple of 16 bytes."""


def attention_scores(query: Tensor, key: Tensor, scale: Scale, clamp: bool = False) -> Tensor:
    """Return (query * scale) key^T: (B, h, N, d), (B, h, M, d) -> (B, h, N, M).

    ``clamp`` limits scores to [-1e9, 1e4], as the course report does "to prevent overflow". It is
    off by default, because softmax subtracts the maximum anyway. The clamp also makes large scores
    equal (20,000 and 15,000 get the same weight) and stops their gradients. If a data type has a
    smaller range, the limits are those of the type (such as fp16 for -1e9).
    """
    scores = (query * scale) @ key.mT
    if not clamp:
        return scores
    finite = torch.finfo(scores.dtype)
    return scores.clamp(max(CLAMP[0], finite.min), min(CLAMP[1], finite.max))


def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    scale: Scale,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    clamp: bool = False,
) -> Tensor:
    """Return softmax(scale q k^T + bias) over the keys: (B, h, N, M). Rows sum to 1.

    A boolean mask is True where attention is allowed. Mask and bias broadcast to (B, h, N, M).
    """
    scores = attention_scores(query, key, scale, clamp)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(dim=-1)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: Scale | None = None,
    bias: Tensor | None = None,
    clamp: bool = False,
    dropout: float = 0.0,
    fused: bool = True,
) -> Tensor:
    """Return softmax(scale q k^T) v: (B, h, N, d), (B, h, M, d), (B, h, M, d) -> (B, h, N, d).

    Vaswani et al. 2017, https://arxiv.org/abs/1706.03762. Queries and keys may come from different
    sequences (cross-attention). ``scale`` is 1 / sqrt(d) by default. ``fused`` uses torch's kernel,
    which never stores the weights. ``clamp`` disables ``fused``.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if fused and not clamp:
        # torch's argument ``scale`` has no gradient, which a learned scale needs
        bias = None if bias is None else bias.to(query.dtype)
        multiple = FUSED_BYTES // value.element_size() if value.is_cuda else 1
        return fused_attention(query * scale, key, value, bias, dropout, multiple)
    weights = attention_weights(query, key, scale=scale, bias=bias, clamp=clamp)
    return F.dropout(weights, dropout) @ value


def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float, multiple: int
) -> Tensor:
    """Return softmax(q k^T + bias) v from torch's fused kernel, with the shapes of ``attention``.

    If the width of a head is not a multiple of ``multiple``, zeros are appended to q, k and v, and
    cut off from the result. They change neither the scores nor the other features.
    """
    width = value.shape[-1]
    missing = -width % multiple
    if missing:
        query, key, value = (F.pad(part, (0, missing)) for part in (query, key, value))
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias, dropout_p=dropout, scale=1.0
    )
    return out[..., :width] if missing else out


def split_heads(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v of all heads: (B, N, 3 D) -> three times (B, h, N, d)."""
    q, k, v = qkv.unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def merge_heads(out: Tensor) -> Tensor:
    """Return the concatenated heads: (B, h, N, d) -> (B, N, D)."""
    return out.transpose(1, 2).flatten(2)


def self_attention(
    qkv: Tensor,
    num_heads: int,
    scale: float,
    turn: Callable[[Tensor], Tensor] | None = None,
    fused: bool = True,
) -> Tensor:
    """Return softmax(scale q k^T) v of all heads: (B, N, 3 D) -> (B, N, D).

    ``turn`` is applied to q and to k, each (B, h, N, d), such as a rotary embedding.
    """
    q, k, v = split_heads(qkv, num_heads)
    if turn is not None:
        q, k = turn(q), turn(k)
    return merge_heads(attention(q, k, v, scale=scale, fused=fused))


def add_norm(
    x: Tensor, branch: Tensor | None, norm: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return (x + branch, norm(x + branch)), each (..., D); without a branch (x, norm(x))."""
    total = x if branch is None else x + branch
    return total, norm(total)


class Stream(NamedTuple):
    """Tokens (B, N, D), and the last branch's output, which must still be added to the tokens.

    The next norm reads all tokens anyway, so a backend can add the branch in the same pass over
    memory. Each branch then takes and returns a stream. The last norm returns a tensor.
    """

    tokens: Tensor
    branch: Tensor | None = None


Tokens = Tensor | Stream


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One function for each op. Each function computes the same result as the op's plain function.

    If a backend has no function for an op, the plain function computes the op. If a function does
    not support the sizes, the device or the data type of a call, it calls the plain function.
    """

    name: str
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = F.linear
    gelu: Callable[[Tensor], Tensor] = F.gelu
    add_norm: Callable[[Tensor, Tensor | None, nn.Module], tuple[Tensor, Tensor]] = add_norm
    attention: Callable[..., Tensor] = self_attention
    attention_branch: Callable[..., Tensor | None] | None = None
    """proj(attention(qkv(norm(x)))) of the first M tokens, (B, N, D) -> (B, M, D), in one call of
    (x, norm, qkv, proj, num_heads, scale, adds, M). ``adds`` adds these tokens of x. If it returns
    None, or is None, the layers of the branch compute it one after the other."""
    ffn_branch: Callable[..., Tensor | None] | None = None
    """fc2(gelu(fc1(norm(x)))) of (x, norm, fc1, fc2, adds), like ``attention_branch``."""
    postpones_sums: Callable[[Tensor], bool] = lambda _: False
    """Return whether the next ``add_norm`` computes the residual sum of these tokens."""
    prepare: Callable[[nn.Module], None] | None = None
    """Prepare the calls of a model, if the backend needs that."""

    def norm(self, x: Tokens, norm: nn.Module) -> Tensor:
        """Return ``norm`` of the tokens, which may be a stream: (B, N, D)."""
        tokens, branch = x if isinstance(x, Stream) else (x, None)
        return self.add_norm(tokens, branch, norm)[1]

    def __deepcopy__(self, memo: object) -> "Backend":
        return self  # copies of a model share their backend


PLAIN = Backend(name="torch")


class UsesBackend:
    """Base class of layers that compute an op with their backend."""

    backend: Backend = PLAIN


def use_backend(model: nn.Module, backend: Backend) -> None:
    """Set the backend of all layers of the model.

    The backend is prepared first. If that fails, the model is unchanged.
    """
    if backend.prepare:
        backend.prepare(model)
    for layer in model.modules():
        if isinstance(layer, UsesBackend):
            layer.backend = backend


class InnerLayer(UsesBackend, nn.Module):
    """A layer inside a residual branch, which a backend may compute together with its norm."""

    @property
    def last(self) -> nn.Module:
        """Return the dropout of the output."""
        raise NotImplementedError

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        """Return the layer's output for ``norm(x)``, computed by the backend in one call.

        None means that the backend does not support it. ``adds`` adds x. Only the first
        ``num_queries`` tokens are returned: (B, N, D) -> (B, M, D).
        """
        raise NotImplementedError


def compute_branch(branch: Any, x: Tokens, *, first_only: bool = False) -> Any:
    """Return the output of a branch for tokens x (B, N, D), computed by its backend.

    None means that the backend does not compute this branch. ``first_only`` returns the output of
    an attention branch for the first token only. A stream gives a stream.
    """
    if isinstance(x, Stream):
        tokens, normal = branch.backend.add_norm(*x, branch.norm)
        if first_only:
            return Stream(branch.merge(tokens[:, :1], branch.inner.forward_first(normal)))
        return Stream(tokens, branch.after(branch.inner(normal)))
    if not (branch.norm_is_first and isinstance(branch.inner, InnerLayer)):
        return None
    num_queries = 1 if first_only else x.shape[1]
    adds = branch.join is torch.add and all(
        map(returns_input, [*branch.after.children(), branch.inner.last])
    )
    out = branch.inner.after_norm(x, branch.norm, adds, num_queries)
    return out if out is None or adds else branch.merge(x[:, :num_queries], out)


def are_unchanged(*layers: nn.Module) -> bool:
    """Return whether layers are those of vitcli or torch, and compute without hooks."""
    for layer in layers:
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
            return False
        if not type(layer).__module__.startswith(("vitcli.", "torch.")):
            return False
    return True


def returns_input(layer: nn.Module) -> bool:
    """Return whether a dropout or drop-path layer returns its input unchanged."""
    rate = layer.p if isinstance(layer, nn.Dropout) else getattr(layer, "rate", None)
    return rate is not None and (not layer.training or rate == 0)


def postpone_sums(model: Any, x: Tensor) -> Any:
    """Return the tokens that enter a model's blocks, as a stream if its norms compute the sums.

    They do in training, if all branches are pre-norm with a plain sum and all norms are LayerNorms.
    """
    if not (model.training and model.backend.postpones_sums(x)):
        return x
    branches = [branch for block in model.blocks for branch in block.children()]
    norms = [model.norm, *(branch.norm for branch in branches)]
    are_sums = all(branch.norm_is_first and branch.join is torch.add for branch in branches)
    return Stream(x) if are_sums and all(type(norm) is nn.LayerNorm for norm in norms) else x


class Linear(UsesBackend, nn.Linear):
    """A linear layer, x W^T + b: (..., in) -> (..., out)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.linear(x, self.weight, self.bias)


def wrap_linear(layer: nn.Linear) -> Linear:
    """Return a ``Linear`` with the parameters of a torch layer. No random number is drawn."""
    with torch.device("meta"):
        ours = Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    ours.weight, ours.bias = layer.weight, layer.bias
    return ours


class Gelu(UsesBackend, nn.GELU):
    """GELU, x Phi(x), for tensors of any shape."""

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.gelu(x)
