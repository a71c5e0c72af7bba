"""Backends: functions that compute the ops of a model, and the layers that call them.

A new model has the backend PLAIN.

A backend can compute a pre-norm branch in one call, or postpone the sum of the branch to the next
norm. Without such a backend, the code of the branch computes it.
Axes: B batch, N tokens (prefix first), M queries (the first tokens), D features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from vitcli.core.ops import plain


class Stream(NamedTuple):
    """Tokens (B, N, D), and the last branch's output, which must still be added to the tokens.

    The next norm reads all tokens anyway, so a backend can add the branch in the same pass over
    memory. Each branch then takes and returns a stream. The last norm returns a tensor.
    """

    tokens: Tensor
    branch: Tensor | None = None


Tokens = Tensor | Stream


class SelfAttentionOp(Protocol):
    """A function with the signature and the result of ``ops.plain.self_attention``."""

    def __call__(
        self,
        qkv: Tensor,
        num_heads: int,
        scale: float,
        turn: Callable[[Tensor], Tensor] | None,
        fused: bool,
    ) -> Tensor: ...


class AttentionBranchOp(Protocol):
    """Returns proj(attention(qkv(norm(x)))) of the first M tokens, (B, N, D) -> (B, M, D).

    ``adds`` adds these tokens of x. None means that the function does not support the call.
    """

    def __call__(
        self,
        x: Tensor,
        norm: nn.Module,
        qkv: nn.Linear,
        proj: nn.Linear,
        num_heads: int,
        scale: float,
        adds: bool,
        num_queries: int,
    ) -> Tensor | None: ...


def never_postpone(x: Tensor) -> bool:
    return False


def prepare_nothing(op: str, *sizes: int) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One function for each op. Each function computes the same result as the op's plain function.

    If a backend has no function for an op, the plain function computes the op. If a function does
    not support the sizes, the device or the data type of a call, it calls the plain function.
    """

    name: str
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = plain.linear
    gelu: Callable[[Tensor], Tensor] = plain.gelu
    add_norm: Callable[[Tensor, Tensor | None, nn.Module], tuple[Tensor, Tensor]] = plain.add_norm
    attention: SelfAttentionOp = plain.self_attention
    attention_branch: AttentionBranchOp | None = None
    """A whole attention branch in one call. None: its layers compute it one after the other."""
    ffn_branch: Callable[[Tensor, nn.Module, nn.Linear, nn.Linear, bool], Tensor | None] | None = (
        None
    )
    """fc2(gelu(fc1(norm(x)))) of (x, norm, fc1, fc2, adds), like ``attention_branch``."""
    postpones_sums: Callable[[Tensor], bool] = never_postpone
    """Return whether the next ``add_norm`` computes the residual sum of these tokens."""
    prepare: Callable[..., None] = prepare_nothing
    """Prepare calls of an op. The arguments are the op's name and its sizes, as in
    ``UsesBackend.op_sizes``."""

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

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        """Return each op that this layer calls, with the sizes of the call."""
        return {}


def use_backend(model: nn.Module, backend: Backend) -> None:
    """Set the backend of all layers of the model.

    The backend is prepared for all layers first. If that fails, the model is unchanged.
    """
    layers = [module for module in model.modules() if isinstance(module, UsesBackend)]
    for layer in layers:
        for op, sizes in layer.op_sizes().items():
            backend.prepare(op, *sizes)
    for layer in layers:
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


def norm_op_sizes(norm: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return ``op_sizes`` of a layer that calls ``add_norm`` with this norm."""
    return {"add_norm": tuple(norm.normalized_shape)} if type(norm) is nn.LayerNorm else {}


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

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"linear": (self.out_features, self.in_features)}

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

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {"gelu": ()}

    def forward(self, x: Tensor) -> Tensor:
        return self.backend.gelu(x)
