"""Swin: attention inside windows that shift from block to block.

Liu et al. 2021, https://arxiv.org/abs/2103.14030.
"""

from torch import nn

from vitcli.core.models.staged import Stage, StagedModel, StageSpec
from vitcli.core.nn.block import build_block
from vitcli.core.nn.window import PatchMerging, WindowAttention
from vitcli.core.spec import SwinSpec


class Swin(StagedModel):
    """Swin classifier: (B, C, H, W) -> (B, K).

    Every second block of a stage shifts its windows by half a window. Each side of a window is at
    most the side of the grid. The authors' code differs: it limits both sides to the shorter side
    of the grid. torchvision differs too: it pads the grid.
    """

    no_maps = "attends only inside windows, so no patch has weights for all other patches"

    def make_stage(self, stage: StageSpec) -> Stage:
        spec, shape = stage.spec, stage.shape
        assert isinstance(spec, SwinSpec)
        down = PatchMerging(spec, stage.before) if stage.index else nn.Identity()
        blocks: list[nn.Module] = []
        for i, rate in enumerate(stage.rates):
            attention = WindowAttention(spec, shape, shifted=i % 2 == 1)
            blocks.append(build_block(spec, shape, rate, attention))
        return Stage(down, blocks)
