"""The Vision Transformer. Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929

Axes: B batch, C channels, H W pixels, N tokens (prefix first: CLS, registers), D embed_dim,
h num_heads, K classes.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel
from vitcli.core.nn.block import build_block, forward_first, forward_with_weights, recomputed
from vitcli.core.nn.init import INITS
from vitcli.core.nn.norm import NORMS
from vitcli.core.nn.patch_embed import build_patch_embed
from vitcli.core.nn.pos_embed import POS_EMBEDS
from vitcli.core.nn.softmax import Attend, TokenShape
from vitcli.core.spec import ModelSpec


class Pool(nn.Module):
    """Reads tokens out: (B, N, D) -> (B, D)."""

    def weights(self, tokens: Tensor) -> Tensor:
        """How much of each token is read out: (B, N, D) -> (B, N), rows sum to 1."""
        raise NotImplementedError


class ClsPool(Pool):
    """The CLS token, the first one: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]

    def weights(self, tokens: Tensor) -> Tensor:
        return torch.eye(tokens.shape[1])[:1].to(tokens).expand(len(tokens), -1)


class MeanPool(Pool):
    """The mean of the patch tokens; registers are left out: (B, N, D) -> (B, D)."""

    def __init__(self, shape: TokenShape) -> None:
        super().__init__()
        self.first = shape.num_prefix_tokens

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.first :].mean(1)

    def weights(self, tokens: Tensor) -> Tensor:
        shares = F.pad(tokens.new_ones(tokens.shape[1] - self.first), (self.first, 0))
        return (shares / shares.sum()).expand(len(tokens), -1)


class SequencePool(MeanPool):
    """softmax(x g)^T x over the patch tokens, g learned: (B, N, D) -> (B, D).

    Hassani et al. 2021, https://arxiv.org/abs/2104.05704
    """

    def __init__(self, shape: TokenShape) -> None:
        super().__init__(shape)
        self.score = nn.Linear(shape.embed_dim, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.first :]
        return (self._shares(patches).mT @ patches).squeeze(1)

    def weights(self, tokens: Tensor) -> Tensor:
        return F.pad(self._shares(tokens[:, self.first :]).squeeze(-1), (self.first, 0))

    def _shares(self, patches: Tensor) -> Tensor:
        return self.score(patches).softmax(dim=1)  # (B, patches, 1)


POOLS: dict[str, Callable[[TokenShape], Pool]] = {
    "cls": ClsPool,
    "mean": MeanPool,
    "seq": SequencePool,
}


def mlp_head(dim: int, num_classes: int) -> nn.Sequential:
    """One hidden layer of the tokens' width."""
    return nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, num_classes))


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"linear": nn.Linear, "mlp": mlp_head}


class VisionTransformer(ImageModel):
    """Images (B, C, H, W), normalised, -> logits (B, K).

    Set ``grad_checkpointing`` to recompute each block in the backward pass; gradients stay equal.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        height, width = (side // spec.patch_size for side in self.image_shape[1:])
        self.grid_size = (height, width)
        self.num_prefix_tokens = spec.num_prefix_tokens
        shape = TokenShape(
            embed_dim=spec.embed_dim,
            grid_size=self.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
        )
        dim = spec.embed_dim
        self.patch_embed = build_patch_embed(spec)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if spec.pool == "cls" else None
        tokens = torch.zeros(1, spec.reg_tokens, dim)
        self.reg_tokens = nn.Parameter(tokens) if spec.reg_tokens else None
        self.pos_embed = POS_EMBEDS[spec.pos_embed].tokens(spec, shape)
        self.pos_drop = nn.Dropout(spec.pos_drop)
        rates = [spec.drop_path * i / max(1, spec.depth - 1) for i in range(spec.depth)]
        self.blocks = nn.Sequential(*[build_block(spec, shape, rate) for rate in rates])
        norm = spec.norm if spec.has_final_norm else "none"
        self.norm = NORMS[norm](dim, spec.norm_eps)
        self.pool = POOLS[spec.pool](shape)
        self.head = HEADS[spec.head](dim, self.num_classes)
        INITS[spec.init](self)

    def embed(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, N, D): patches, positions, and the prefix before them.

        As in the report, positions are added to the patches before the prefix is put in front;
        with ``pos_embed_prefix`` the prefix gets positions of its own.

        Raises:
            ValueError: The images are not of the size that the model was built for.
        """
        self.check_images(images)
        tokens = self.patch_embed(images)  # (B, patches, D)
        first = 0
        if self.pos_embed is not None:
            table = self.pos_embed()  # (1, patches [+ prefix], D)
            first = table.shape[1] - tokens.shape[1]
            tokens = tokens + table[:, first:]
        prefix: list[Tensor] = [
            part for part in (self.cls_token, self.reg_tokens) if part is not None
        ]
        if prefix:
            front = torch.cat(prefix, dim=1)
            if first:
                front = front + table[:, :first]
            tokens = torch.cat([front.expand(len(tokens), -1, -1).to(tokens.dtype), tokens], dim=1)
        return self.pos_drop(tokens)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images -> tokens after the last norm, (B, N, D)."""
        return self.norm(self._run(self.blocks, self.embed(images)))

    def _run(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        for block in blocks:
            if self.grad_checkpointing and self.training:
                tokens = recomputed(block, tokens)
            else:
                tokens = block(tokens)
        return tokens

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> logits (B, K)."""
        return self.head(self.pool(tokens))

    def forward(self, images: Tensor) -> Tensor:
        """Images -> logits; of the last block only what the head reads is computed."""
        if not self._reads_first_only():
            return self.forward_head(self.forward_features(images))
        *blocks, last = self.blocks
        tokens = self._run(blocks, self.embed(images))
        return self.forward_head(self.norm(forward_first(last, tokens)))

    def _reads_first_only(self) -> bool:
        """Whether CLS is all that is read, and no norm mixes it with the other tokens."""
        is_last = isinstance(self.pool, ClsPool) and len(self.blocks) > 0
        return is_last and self.spec.norm != "batch_norm"

    @property
    def has_attention_weights(self) -> bool:
        """Whether there is a layer, and tokens have weights for each other in all of them."""
        found = [module for module in self.modules() if isinstance(module, Attend)]
        return bool(found) and all(rule.has_weights for rule in found)

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
        return self.forward_head(self.norm(tokens)), found

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


def build_vit(spec: ModelSpec) -> VisionTransformer:
    """Build and initialise; ValueError where a size is open or the parts do not fit."""
    return VisionTransformer(spec)
