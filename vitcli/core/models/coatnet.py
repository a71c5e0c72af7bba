"""CoAtNet: convolutional stages, then attention stages with relative positions.

Dai et al. 2021, https://arxiv.org/abs/2106.04803. Axes: B batch, C channels, H W pixels, N tokens
of a grid, D width of a token, K classes.
"""

from dataclasses import replace

from torch import Tensor, nn

from vitcli.core.models.layers import build_attention, build_block, build_position, make_part
from vitcli.core.models.staged import Stage, StagedModel, StageSpec, halve_grid
from vitcli.core.nn.attention import SelfAttention, TokenShape
from vitcli.core.nn.block import Block, Branch
from vitcli.core.nn.mbconv import Downsample, MBConv, as_tokens, build_shortcut
from vitcli.core.nn.patch_embed import channels_last
from vitcli.core.ops.backend import Gelu
from vitcli.core.spec import CoatnetSpec
from vitcli.core.spec.slots import RESIDUALS
from vitcli.plugin import load_target


class Stem(nn.Module):
    """Two 3x3 convolutions; the first has the stride: (B, C, H, W) -> (B, N, D)."""

    def __init__(self, in_chans: int, dim: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(in_chans, dim, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(dim),
            Gelu(),
            nn.Conv2d(dim, dim, 3, padding=1, bias=False),
        )

    def forward(self, images: Tensor) -> Tensor:
        return as_tokens(self.layers(channels_last(images)))


class DownsamplingBranch(Branch):
    """An attention branch that changes grid and width: Proj(Pool(x)) + Attn(Pool(Norm(x)))."""

    def __init__(self, branch: Branch, stage: StageSpec) -> None:
        norm = make_part(stage.spec, "norm", stage.before.embed_dim)
        super().__init__(norm, branch.inner, branch.join, branch.after)
        changes = stage.before.grid_size != stage.shape.grid_size
        self.downsample = Downsample(stage.before) if changes else nn.Identity()
        self.shortcut = build_stage_shortcut(stage)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        return self.join(shortcut, self.after(self.inner(self.downsample(self.norm(x)))))


class CoAtNet(StagedModel):
    """CoAtNet classifier: (B, C, H, W) -> (B, K).

    ``layout`` gives the kind of each stage, C or T, such as CCTT. ``patch_size`` is the stride of
    the first stage in pixels, and the stem has half of this stride. With the paper's
    ``patch_size`` of 4, 224x224 pixels become 7x7 tokens in the last stage.
    """

    spec: CoatnetSpec
    no_maps = "attends on several grids, so its patches are not the same from layer to layer"

    def make_patch_embed(self) -> tuple[nn.Module, int]:
        stride = max(1, self.spec.patch_size // 2)
        return Stem(self.image_shape[0], self._stem_width, stride), stride

    @property
    def _stem_width(self) -> int:
        return self.spec.stem_width or self.spec.embed_dim

    def first_shapes(self) -> tuple[TokenShape, TokenShape]:
        stem = replace(self.token_shape, embed_dim=self._stem_width)
        first = halve_grid(self.token_shape) if self.spec.patch_size > 1 else self.token_shape
        return stem, first

    def make_stage(self, stage: StageSpec) -> Stage:
        is_conv = self.spec.layout[stage.index] == "C"
        blocks: list[nn.Module] = []
        before = stage.before
        for rate in stage.rates:
            part = replace(stage, before=before)
            if is_conv:
                join = load_target(RESIDUALS[stage.spec.residual].build)
                block: nn.Module = MBConv(
                    before, stage.shape, build_stage_shortcut(part), join, rate
                )
            else:
                block = build_attention_block(part, rate)
            blocks.append(block)
            before = stage.shape
        return Stage(nn.Identity(), blocks)


def build_stage_shortcut(stage: StageSpec) -> nn.Sequential:
    """Return the shortcut; without residual connections, the join ignores it, so it is empty."""
    has_shortcut = stage.spec.has_residual
    return build_shortcut(stage.before, stage.shape) if has_shortcut else nn.Sequential()


def build_attention_block(stage: StageSpec, rate: float) -> Block:
    spec, shape = stage.spec, stage.shape
    if stage.before == shape:
        return build_block(spec, shape, rate)
    parts = SelfAttention, build_position(spec, shape)
    attention = build_attention(spec, shape, *parts, in_dim=stage.before.embed_dim)
    block = build_block(spec, shape, rate, attention)
    return Block(DownsamplingBranch(block.attn, stage), block.ffn)
