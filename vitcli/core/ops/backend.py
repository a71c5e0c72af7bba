"""A backend: the functions that compute a model's ops. Each model has its own, PLAIN at first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from vitcli.core.ops import plain
from vitcli.core.ops.attention import self_attention


class SelfAttentionOp(Protocol):
    """Computes what ``ops.attention.self_attention`` defines."""

    def __call__(
        self,
        qkv: Tensor,
        num_heads: int,
        scale: float,
        turn: Callable[[Tensor], Tensor] | None,
        fused: bool,
    ) -> Tensor: ...


def never(x: Tensor) -> bool:
    return False


def need_nothing(op: str, *sizes: int) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One function for each op, which computes what the plain one does.

    An op that a backend leaves out stays plain. A function that cannot compute some call, because
    of its sizes, device or type, returns what the plain function returns.
    """

    name: str
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor] = plain.linear
    gelu: Callable[[Tensor], Tensor] = plain.gelu
    add_norm: Callable[[Tensor, Tensor | None, nn.Module], tuple[Tensor, Tensor]] = plain.add_norm
    attention: SelfAttentionOp = self_attention
    postpones_sums: Callable[[Tensor], bool] = never
    """Whether a residual sum of such tokens is left to the next ``add_norm``."""
    prepare: Callable[..., None] = need_nothing
    """Gets ready for calls of an op: its name, then its sizes as in ``UsesBackend.op_sizes``."""

    def __deepcopy__(self, memo: object) -> "Backend":
        return self  # the copy of a model is computed by the same functions


PLAIN = Backend(name="torch")


class UsesBackend:
    """A layer that asks its backend for an op."""

    backend: Backend = PLAIN

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        """The sizes that an op will be called with, for each op that this layer calls."""
        raise NotImplementedError


def use_backend(model: nn.Module, backend: Backend) -> None:
    """Let the backend compute all layers of the model from now on.

    The backend is prepared for all layers before the first one changes.
    """
    layers = [module for module in model.modules() if isinstance(module, UsesBackend)]
    for layer in layers:
        for op, sizes in layer.op_sizes().items():
            backend.prepare(op, *sizes)
    for layer in layers:
        layer.backend = backend
