"""Models in stages: each stage halves the grid of tokens and doubles their width.

Axes: B batch, C channels, H W pixels, N tokens (prefix first), D width of a token, K classes.
"""

from dataclasses import dataclass, replace
from itertools import islice

from torch import Tensor, nn

from vitcli.core.models.vit import TokenModel
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.block import drop_path_rates
from vitcli.core.spec import StagedSpec


@dataclass(frozen=True)
class StageSpec:
    """Arguments to build a stage."""

    index: int
    spec: StagedSpec
    """Spec with the width and the heads of this stage."""
    before: TokenShape
    """Shape of the input tokens: equal to ``shape``, or narrower on a larger grid."""
    shape: TokenShape
    """Shape of the output tokens."""
    rates: list[float]
    """Stochastic-depth rate of each block."""


class Stage(nn.Module):
    """A layer that changes grid and width, followed by blocks that keep both."""

    def __init__(self, down: nn.Module, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.down, self.blocks = down, nn.Sequential(*blocks)


class StagedModel(TokenModel):
    """Base class of models in stages: normalised images (B, C, H, W) -> logits (B, K).

    Each stage after the first halves the sides of the grid, rounded up, and doubles width and
    heads. So the width of a head is the same in all stages.
    """

    def __init__(self, spec: StagedSpec) -> None:
        super().__init__(spec)
        depths = spec.depths or ()
        rates = iter(drop_path_rates(spec.drop_path, sum(depths)))
        before, shape = self.first_shapes()
        stages = []
        for index, depth in enumerate(depths):
            if index:
                before, shape = shape, halve_grid(shape, widened=True)
                width, heads = 2 * spec.embed_dim, 2 * spec.num_heads
                spec = spec.replace(embed_dim=width, num_heads=heads)
            stage = StageSpec(index, spec, before, shape, list(islice(rates, depth)))
            stages.append(self.make_stage(stage))
        self.stages = nn.ModuleList(stages)
        self.add_head(shape)

    def first_shapes(self) -> tuple[TokenShape, TokenShape]:
        """Return the shapes of the tokens before and in the first stage."""
        return self.token_shape, self.token_shape

    def make_stage(self, stage: StageSpec) -> Stage:
        raise NotImplementedError

    def forward_features(self, images: Tensor) -> Tensor:
        tokens = self.embed(images)
        for stage in self.stages:
            assert isinstance(stage, Stage)
            tokens = self.run_blocks(stage.blocks, stage.down(tokens))
        return self.last_norm(tokens)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def halve_grid(shape: TokenShape, *, widened: bool = False) -> TokenShape:
    """Return a shape with halved sides, rounded up; ``widened`` doubles width and heads."""
    height, width = shape.grid_size
    if height * width == 1:
        raise ValueError(
            "depths has too many stages: the grid is 1x1 before the last stage; use fewer"
            " stages, larger images or a smaller patch_size"
        )
    grid, factor = (-(-height // 2), -(-width // 2)), 1 + widened
    dim, heads = factor * shape.embed_dim, factor * shape.num_heads
    return replace(shape, grid_size=grid, embed_dim=dim, num_heads=heads)
