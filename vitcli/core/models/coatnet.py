"""CoAtNet: convolutional stages, then attention stages with relative positions.

Dai et al. 2021, https://arxiv.org/abs/2106.04803. Axes: B batch, C channels, H W pixels, N tokens
of a grid, D width of a token, K classes.
"""

from collections import OrderedDict
from dataclasses import replace

from torch import Tensor, nn

from vitcli.core.models.staged import Stage, StagedModel, StageSpec, halve_grid
from vitcli.core.nn.attention import SelfAttention
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.block import PreNorm, build_block
from vitcli.core.nn.linear import Gelu
from vitcli.core.nn.mbconv import Downsample, MBConv, as_tokens, build_shortcut
from vitcli.core.nn.norm import build_norm
from vitcli.core.nn.patch_embed import channels_last, input_channels
from vitcli.core.nn.pos_embed import build_position
from vitcli.core.spec import CoatnetSpec, TokenSpec


class Stem(nn.Module):
    """Two 3x3 convolutions; the first has the stride: (B, C, H, W) -> (B, N, D)."""

    def __init__(self, spec: TokenSpec, dim: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(input_channels(spec), dim, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(dim),
            Gelu(),
            nn.Conv2d(dim, dim, 3, padding=1, bias=False),
        )

    def forward(self, images: Tensor) -> Tensor:
        return as_tokens(self.layers(channels_last(images)))


class DownsamplingBranch(PreNorm):
    """An attention branch that changes grid and width: Proj(Pool(x)) + Attn(Pool(Norm(x)))."""

    def __init__(self, branch: PreNorm, stage: StageSpec) -> None:
        norm = build_norm(stage.spec, stage.before.embed_dim)
        super().__init__(norm, branch.inner, branch.join, branch.after)
        changes = stage.before.grid_size != stage.shape.grid_size
        self.downsample = Downsample(stage.before) if changes else nn.Identity()
        self.shortcut = build_shortcut(stage.spec, stage.before, stage.shape)

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return {}

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.merge(self.shortcut(x), self.inner(self.downsample(self.norm(x))))


class CoAtNet(StagedModel):
    """CoAtNet classifier: (B, C, H, W) -> (B, K).

    ``layout`` gives the kind of each stage, C or T, such as CCTT. ``patch_size`` is the stride of
    the first stage in pixels, and the stem has half of this stride. With the paper's
    ``patch_size`` of 4, 224x224 pixels become 7x7 tokens in the last stage.
    """

    spec: CoatnetSpec
    no_maps = "attends on several grids, so its patches are not the same from layer to layer"

    def make_patch_embed(self, spec: TokenSpec) -> tuple[nn.Module, int]:
        stride = max(1, spec.patch_size // 2)
        return Stem(spec, self.spec.stem_width or spec.embed_dim, stride), stride

    def first_shapes(self) -> tuple[TokenShape, TokenShape]:
        width = self.spec.stem_width or self.spec.embed_dim
        stem = replace(self.token_shape, embed_dim=width)
        first = halve_grid(self.token_shape) if self.spec.patch_size > 1 else self.token_shape
        return stem, first

    def make_stage(self, stage: StageSpec) -> Stage:
        is_conv = self.spec.layout[stage.index] == "C"
        build = build_conv_block if is_conv else build_attention_block
        blocks: list[nn.Module] = []
        before = stage.before
        for rate in stage.rates:
            blocks.append(build(replace(stage, before=before), rate))
            before = stage.shape
        return Stage(nn.Identity(), blocks)


def build_conv_block(stage: StageSpec, rate: float) -> MBConv:
    return MBConv(stage.spec, stage.before, stage.shape, rate)


def build_attention_block(stage: StageSpec, rate: float) -> nn.Sequential:
    """Return a block of attention and FFN, whose attention branch may change grid and width."""
    spec, shape = stage.spec, stage.shape
    if stage.before == shape:
        return build_block(spec, shape, rate)
    position = build_position(spec, shape)
    attention = SelfAttention(spec, shape, position, in_dim=stage.before.embed_dim)
    (_, branch), *others = build_block(spec, shape, rate, attention).named_children()
    assert isinstance(branch, PreNorm)
    return nn.Sequential(OrderedDict([("attn", DownsamplingBranch(branch, stage)), *others]))
