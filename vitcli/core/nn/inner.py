"""The inner layer of a residual branch."""

from torch import Tensor, nn

from vitcli.core.ops.backend import UsesBackend


class InnerLayer(UsesBackend, nn.Module):
    """A layer inside a residual branch, which a backend may compute together with its norm."""

    @property
    def last(self) -> nn.Module:
        """Return the dropout of the output."""
        raise NotImplementedError

    def after_norm(self, x: Tensor, norm: nn.Module, adds: bool, num_queries: int) -> Tensor | None:
        """Return the layer's output for ``norm(x)``, computed by the backend in one call.

        None means that the backend does not support it. ``adds`` adds x. Only the first
        ``num_queries`` tokens are returned: (B, N, D) -> (B, num_queries, D).
        """
        raise NotImplementedError
