"""Normalisation layers. Axes: B batch, N tokens, D embed_dim."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from torch import Tensor, nn


class TokenBatchNorm(nn.BatchNorm1d):
    """BatchNorm per feature over batch and tokens, (B, N, D) -> (B, N, D).

    Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167. One source describes statistics
    "for every pixel across the batch"; torch's BatchNorm, and this, share them over positions too.
    An image's result depends on the others in its batch, which LayerNorm's does not.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view_as(x)


class StatisticsHeld(AbstractContextManager[None]):
    """Inside, BatchNorm normalises as ever, but its running statistics stand still.

    For a forward pass that is only repeated, to get at its gradients. May be entered again.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [part for part in module.modules() if isinstance(part, TokenBatchNorm)]

    def __enter__(self) -> None:
        self.kept = [(norm.momentum, norm.num_batches_tracked) for norm in self.norms]
        for norm in self.norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None

    def __exit__(self, *error: object) -> None:
        for norm, (momentum, count) in zip(self.norms, self.kept, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count


def no_norm(dim: int, eps: float) -> nn.Module:
    return nn.Identity()


NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer_norm": lambda dim, eps: nn.LayerNorm(dim, eps=eps),
    "batch_norm": lambda dim, eps: TokenBatchNorm(dim, eps=eps),
    "rms_norm": lambda dim, eps: nn.RMSNorm(dim, eps=eps),
    "none": no_norm,
}
