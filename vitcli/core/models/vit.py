"""The Vision Transformer. Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929

Axes: B batch, C channels, H W pixels, N tokens (prefix first: CLS, registers), D embed_dim,
h num_heads, K classes.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from vitcli.core.models.token_model import TokenModel
from vitcli.core.nn.block import (
    PreNorm,
    Stream,
    Tokens,
    build_block,
    drop_path_rates,
    forward_first,
    forward_with_weights,
)
from vitcli.core.nn.pool import ClsPool
from vitcli.core.spec import ModelSpec, VitSpec
from vitcli.core.spec.slots import ATTENTIONS, NORMS


class VisionTransformer(TokenModel):
    """Images (B, C, H, W), normalised, -> logits (B, K).

    Set ``grad_checkpointing`` to recompute each block in the backward pass; gradients stay equal.
    """

    spec: VitSpec
    no_maps = None

    def __init__(self, spec: VitSpec) -> None:
        super().__init__(spec)
        shape = self.token_shape
        rates = drop_path_rates(spec.drop_path, spec.depth)
        self.blocks = nn.Sequential(*[build_block(spec, shape, rate) for rate in rates])
        self.add_head(shape)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images -> tokens after the last norm, (B, N, D)."""
        return self.last_norm(self.run_blocks(self.blocks, self._enter_blocks(images)))

    def forward(self, images: Tensor) -> Tensor:
        """Images -> logits; of the last block only what the head reads is computed."""
        if not self._reads_first_only():
            return self.forward_head(self.forward_features(images))
        *blocks, last = self.blocks
        tokens = self.run_blocks(blocks, self._enter_blocks(images))
        return self.forward_head(self.last_norm(forward_first(last, tokens)))

    def _enter_blocks(self, images: Tensor) -> Tokens:
        """The embedded images; a stream, where the residual sums are left to the norms."""
        tokens = self.embed(images)
        if not (self.training and self.backend.postpones_sums(tokens)):
            return tokens
        branches = [branch for block in self.blocks for branch in block.children()]
        can_all = all(isinstance(branch, PreNorm) and branch.takes_streams for branch in branches)
        return Stream(tokens) if can_all and type(self.norm) is nn.LayerNorm else tokens

    def _reads_first_only(self) -> bool:
        """Whether CLS is all that is read, and no norm mixes it with the other tokens."""
        is_last = isinstance(self.pool, ClsPool) and len(self.blocks) > 0
        return is_last and not NORMS[self.spec.norm].is_batch_norm

    @property
    def has_attention_weights(self) -> bool:
        """Whether there is a layer, and tokens have weights for each other in all of them."""
        return len(self.blocks) > 0 and ATTENTIONS[self.spec.attention].has_attention_matrix

    def attention_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """The weights (B, h, N, N) of the layers asked for (from 0; all unless given).

        Only those layers take the explicit path, so memory stays that of the maps returned.
        """
        return self._attend(images, self._layers(layers), stop_early=True)[1]

    def forward_with_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Logits (B, K), and the weights that they were computed from, by layer.

        Where gradients are on, the logits can be differentiated by the weights.
        """
        tokens, found = self._attend(images, self._layers(layers))
        return self.forward_head(self.last_norm(tokens)), found

    def _attend(
        self, images: Tensor, wanted: Sequence[int], *, stop_early: bool = False
    ) -> tuple[Tensor, dict[int, Tensor]]:
        found: dict[int, Tensor] = {}
        tokens = self.embed(images)
        for i, block in enumerate(self.blocks):
            if stop_early and i > max(wanted, default=-1):
                break
            if i in wanted:
                tokens, found[i] = forward_with_weights(block, tokens)
            else:
                tokens = block(tokens)
        return tokens, found

    def _layers(self, layers: Sequence[int] | None) -> list[int]:
        return [self._layer(i) for i in (range(len(self.blocks)) if layers is None else layers)]

    def _layer(self, index: int) -> int:
        depth = len(self.blocks)
        if not -depth <= index < depth:
            raise ValueError(f"layer {index} is out of range: the model has {depth} layers")
        return index % depth


def build_vit(spec: ModelSpec, seed: int | None = None) -> VisionTransformer:
    """``build_model`` for the family ``vit``."""
    assert isinstance(spec, VitSpec)
    return VisionTransformer(spec).initialised(seed)
