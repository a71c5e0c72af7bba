"""Models whose grid of tokens shrinks from stage to stage, while the tokens grow wider.

Axes: B batch, C channels, H W pixels, N tokens (prefix first), D width of a token, K classes.
"""

from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor, nn

from vitcli.core.models.token_model import TokenModel
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.block import drop_path_rates
from vitcli.core.spec import StagedSpec


@dataclass(frozen=True)
class StageSpec:
    """What a stage is built from."""

    index: int
    spec: StagedSpec
    """With the stage's own width and heads."""
    before: TokenShape
    """Of the tokens that come in: the same, or narrower on a larger grid."""
    shape: TokenShape
    rates: list[float]
    """Stochastic depth, a rate a block."""


class Stage(nn.Module):
    """A change of grid and width, then blocks that keep both."""

    def __init__(self, down: nn.Module, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.down, self.blocks = down, nn.Sequential(*blocks)


class StagedModel(TokenModel):
    """Images (B, C, H, W), normalised, -> logits (B, K), through stages.

    From one stage to the next the sides of the grid are halved (and rounded up), and width and
    heads doubled, so that a head keeps its width.
    """

    def __init__(self, spec: StagedSpec) -> None:
        super().__init__(spec)
        depths = spec.depths or ()
        rates = iter(drop_path_rates(spec.drop_path, sum(depths)))
        before, shape = self.first_shapes()
        stages = []
        for index, depth in enumerate(depths):
            if index:
                before, shape = shape, halved(shape, widened=True)
                width, heads = 2 * spec.embed_dim, 2 * spec.num_heads
                spec = spec.replace(embed_dim=width, num_heads=heads)
            stage = StageSpec(index, spec, before, shape, list(islice(rates, depth)))
            stages.append(self.make_stage(stage))
        self.stages = nn.ModuleList(stages)
        self.add_head(shape)

    def first_shapes(self) -> tuple[TokenShape, TokenShape]:
        """Of the tokens before and in the first stage."""
        return self.token_shape, self.token_shape

    def make_stage(self, stage: StageSpec) -> Stage:
        raise NotImplementedError

    def forward_features(self, images: Tensor) -> Tensor:
        """Images -> tokens after the last norm, (B, N, D)."""
        tokens = self.embed(images)
        for stage in self.stages:
            assert isinstance(stage, Stage)
            tokens = self.run_blocks(stage.blocks, stage.down(tokens))
        return self.last_norm(tokens)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def halved(shape: TokenShape, *, widened: bool = False) -> TokenShape:
    """Half the sides, rounded up, and twice the width where that is wanted.

    Raises:
        ValueError: It is a single token already.
    """
    height, width = shape.grid_size
    if height * width == 1:
        raise ValueError(
            "depths has too many stages for so few patches: the grid is 1x1 before the last; use"
            " fewer stages, larger images or a smaller patch_size"
        )
    grid = -(-height // 2), -(-width // 2)
    return replace(shape, grid_size=grid, embed_dim=shape.embed_dim * (1 + widened))
