"""Backends: functions that compute the ops of a model. A new model has the backend PLAIN."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from vitcli.core.ops import plain
from vitcli.core.ops.attention import self_attention


class Stream(NamedTuple):
    """Tokens (B, N, D), and the last branch's output, which must still be added to the tokens.

    The next norm reads all tokens anyway, so a backend can add the branch in the same pass over
    memory. Each branch then takes and returns a stream. The last norm returns a tensor.
    """

    tokens: Tensor
    branch: Tensor | None = None


Tokens = Tensor | Stream


class SelfAttentionOp(Protocol):
    """A function with the signature and the result of ``ops.attention.self_attention``."""

    def __call__(
        self,
        qkv: Tensor,
        num_heads: int,
        scale: float,
        turn: Callable[[Tensor], Tensor] | None,
        fused: bool,
    ) -> Tensor: ...


class AttentionBranchOp(Protocol):
    """A function with the signature and the result of ``ops.plain.attention_branch``."""

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
    attention: SelfAttentionOp = self_attention
    attention_branch: AttentionBranchOp = plain.attention_branch
    ffn_branch: Callable[[Tensor, nn.Module, nn.Linear, nn.Linear, bool], Tensor | None] = (
        plain.ffn_branch
    )
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
