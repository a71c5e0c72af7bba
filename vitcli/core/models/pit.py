"""PiT: a Vision Transformer that pools between stages.

Heo et al. 2021, https://arxiv.org/abs/2103.16302. Axes: B batch, N tokens (prefix first), D width.
"""

import torch
from torch import Tensor, nn

from vitcli.core.models.layers import build_block
from vitcli.core.models.staged import Stage, StagedModel, StageSpec
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.mbconv import DepthwiseConv
from vitcli.core.ops.backend import Linear


class TokenPooling(nn.Module):
    """Pooling between stages: (B, N, D) -> (B, N', 2 D). A quarter of the patches remain.

    Two 3x3 filters of stride 2 for each feature pool the patches. A linear map widens the prefix.
    """

    def __init__(self, before: TokenShape, shape: TokenShape) -> None:
        super().__init__()
        narrow, wide = before.embed_dim, shape.embed_dim
        self.num_prefix = before.num_prefix_tokens
        self.filters = DepthwiseConv(narrow, wide, before.grid_size, stride=2, bias=True)
        self.prefix = Linear(narrow, wide) if self.num_prefix else None

    def forward(self, x: Tensor) -> Tensor:
        patches = self.filters(x[:, self.num_prefix :])
        if self.prefix is None:
            return patches
        return torch.cat([self.prefix(x[:, : self.num_prefix]).to(patches.dtype), patches], dim=1)


class Pit(StagedModel):
    """PiT classifier: (B, C, H, W) -> (B, K). It supports all slots of a Vision Transformer.

    Deviations: patches do not overlap, and the model has no distillation token.
    """

    no_maps = "attends on several grids, so its patches are not the same from layer to layer"

    def make_stage(self, stage: StageSpec) -> Stage:
        down = TokenPooling(stage.before, stage.shape) if stage.index else nn.Identity()
        return Stage(down, [build_block(stage.spec, stage.shape, rate) for rate in stage.rates])
