"""Residual branches as a backend computes them.

A backend can compute a pre-norm branch in one call, or postpone the sum of the branch to the next
norm. Without such a backend, the code of the branch computes it.
Axes: B batch, N tokens (prefix first), M queries (the first tokens), D features.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.ops.backend import Stream, Tokens, UsesBackend


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
