"""Swin: attention inside windows that shift from block to block.

Liu et al. 2021, https://arxiv.org/abs/2103.14030.
"""

from dataclasses import replace

from torch import nn

from vitcli.core.models.layers import build_attention, build_block, build_position, make_part
from vitcli.core.models.staged import Stage, StagedModel, StageSpec
from vitcli.core.nn.window import PatchMerging, WindowAttention, Windows
from vitcli.core.spec import SwinSpec
from vitcli.core.spec.slots import POS_EMBEDS


class Swin(StagedModel):
    """Swin classifier: (B, C, H, W) -> (B, K).

    Every second block of a stage shifts its windows by half a window. Each side of a window is at
    most the side of the grid. The authors' code differs: it limits both sides to the shorter side
    of the grid. torchvision differs too: it pads the grid.
    """

    no_maps = "attends only inside windows, so no patch has weights for all other patches"

    def make_stage(self, stage: StageSpec) -> Stage:
        spec, before, shape = stage.spec, stage.before, stage.shape
        assert isinstance(spec, SwinSpec)
        down: nn.Module = nn.Identity()
        if stage.index:
            down = PatchMerging(before, make_part(spec, "norm", 4 * before.embed_dim))
        blocks: list[nn.Module] = []
        for i, rate in enumerate(stage.rates):
            windows = Windows(shape.grid_size, spec.window_size, shifted=i % 2 == 1)
            relative = None
            if POS_EMBEDS[spec.pos_embed].biases_scores:
                relative = build_position(spec, replace(shape, grid_size=windows.size))
            attention = build_attention(spec, shape, WindowAttention, windows, relative)
            blocks.append(build_block(spec, shape, rate, attention))
        return Stage(down, blocks)
