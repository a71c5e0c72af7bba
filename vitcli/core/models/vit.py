"""The Vision Transformer. Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929

``TokenModel`` has what every model of tokens shares.
Axes: B batch, C channels, H W pixels, N tokens (prefix first: CLS, registers), D embed_dim,
h num_heads, K classes.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import ImageModel, MappedModel, chosen_layers, refuse_bytes
from vitcli.core.models.layers import build_block, build_patch_embed, build_table, make_part
from vitcli.core.nn.attention import TokenShape, check_shares
from vitcli.core.nn.block import Block, Branch, drop_path_rates, forward_recomputed
from vitcli.core.nn.init import init_parts, keeping_own
from vitcli.core.nn.pool import ClsPool, Pool
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.ops.backend import UsesBackend, postpone_sums
from vitcli.core.randomness import Draws
from vitcli.core.spec import ModelSpec, PatchSpec, TokenSpec, VitSpec
from vitcli.core.spec.rows import make
from vitcli.core.spec.slots import ATTENTIONS, HEADS, INITS, NORMS, POOLS


class TokenModel(UsesBackend, ImageModel):
    """Base class with embedding, last norm, pooling and head; subclasses add what is in between."""

    spec: TokenSpec
    grid_size: tuple[int, int]
    """Rows and columns of the embedded patches."""
    norm: nn.Module
    pool: Pool

    def __init__(self, spec: TokenSpec) -> None:
        super().__init__(spec)
        self.patch_embed, patch_size = self.make_patch_embed()
        height, width = (side // patch_size for side in self.image_shape[1:])
        self.grid_size = (height, width)
        self.num_prefix_tokens = spec.num_prefix_tokens
        dim = spec.embed_dim
        has_cls = POOLS[spec.pool].has_cls_token
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if has_cls else None
        registers = torch.zeros(1, spec.num_prefix_tokens - has_cls, dim)
        self.reg_tokens = nn.Parameter(registers) if registers.numel() else None
        self.pos_embed = build_table(spec, self.token_shape)
        self.pos_drop = nn.Dropout(spec.pos_drop)

    def make_patch_embed(self) -> tuple[nn.Module, int]:
        """Return the patch embedding and the distance between neighbouring patches in pixels."""
        assert isinstance(self.spec, PatchSpec), "other families override this method"
        return build_patch_embed(self.spec), self.spec.patch_size

    @property
    def token_shape(self) -> TokenShape:
        return TokenShape(
            embed_dim=self.spec.embed_dim,
            grid_size=self.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
            num_heads=self.spec.num_heads,
        )

    def add_head(self, shape: TokenShape) -> None:
        spec = self.spec
        has_norm = spec.has_final_norm
        self.norm = make_part(spec, "norm", shape.embed_dim) if has_norm else nn.Identity()
        self.pool = make_part(spec, "pool", shape)
        self.head = make(HEADS[spec.head], shape.embed_dim, self.num_classes)

    def init_weights(self, draws: Draws) -> None:
        """Initialise all tensors: first with ``init_parts``, then with the scheme ``spec.init``."""
        with keeping_own(self):
            init_parts(self, draws)
            make(INITS[self.spec.init], self, draws)

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens of images: (B, C, H, W) -> (B, N, D), prefix first.

        As in the course report, positions are added to the patches before the prefix is prepended.
        With ``pos_embed_prefix`` the prefix has positions too.
        """
        self.check_images(images)
        return self.embed_patches(images, self.grid_size)

    def embed_patches(
        self, images: Tensor, grid_size: tuple[int, int], keep: Tensor | None = None
    ) -> Tensor:
        """Return the tokens of images on a grid of patches, as ``embed`` does, unchecked.

        A table of positions is resized to this grid. ``keep`` (B, n) are the patches that become
        tokens, in reading order; None keeps all.
        """
        tokens = self.patch_embed(images)  # (B, patches, D)
        first = 0
        if self.pos_embed is not None:
            table = resize_positions(self.pos_embed(), self.grid_size, grid_size)
            first = table.shape[1] - tokens.shape[1]
            tokens = tokens + table[:, first:]
        # Without a table, bf16 patches would make all residual sums bf16.
        tokens = tokens.to(torch.promote_types(tokens.dtype, torch.float32))
        if keep is not None:
            tokens = tokens.gather(1, keep[..., None].expand(-1, -1, tokens.shape[-1]))
        learned = (self.cls_token, self.reg_tokens)
        prefix: list[Tensor] = [part for part in learned if part is not None]
        if prefix:
            front = torch.cat(prefix, dim=1)
            if first:
                front = front + table[:, :first]
            front = front.expand(tokens.shape[0], -1, -1).to(tokens.dtype)
            tokens = torch.cat([front, tokens], dim=1)
        return self.pos_drop(tokens)

    def run_blocks(self, blocks: Iterable[nn.Module], tokens: Tensor) -> Tensor:
        """Return the tokens after all blocks.

        In training with ``grad_checkpointing``, the backward pass recomputes the blocks. There is
        none without gradients, as in a teacher.
        """
        recomputes = self.grad_checkpointing and self.training and torch.is_grad_enabled()
        for block in blocks:
            tokens = forward_recomputed(block, tokens) if recomputes else block(tokens)
        return tokens

    @property
    def num_patches(self) -> int:
        return self.grid_size[0] * self.grid_size[1]

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the tokens (B, N, D) after the last norm."""
        raise NotImplementedError

    def features(self, images: Tensor) -> Tensor:
        return self.pool(self.forward_features(images))

    def last_norm(self, tokens: Tensor) -> Tensor:
        """Return the normalised tokens (B, N, D) from the output of the last block."""
        return self.backend.norm(tokens, self.norm)

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Return the logits: (B, N, D) -> (B, K)."""
        return self.head(self.pool(tokens))


class VisionTransformer(TokenModel, MappedModel):
    """Vision Transformer classifier: normalised images (B, C, H, W) -> logits (B, K).

    Set ``grad_checkpointing`` to recompute each block in the backward pass. Gradients are equal.
    """

    spec: VitSpec
    blocks: nn.Sequential
    no_maps = None

    def __init__(self, spec: VitSpec) -> None:
        super().__init__(spec)
        self.norm_pre = make_part(spec, "norm", spec.embed_dim) if spec.pre_norm else None
        shape = self.token_shape
        rates = drop_path_rates(spec.drop_path, spec.depth)
        self.blocks = nn.Sequential(*[build_block(spec, shape, rate) for rate in rates])
        self.add_head(shape)

    def embed_patches(
        self, images: Tensor, grid_size: tuple[int, int], keep: Tensor | None = None
    ) -> Tensor:
        tokens = super().embed_patches(images, grid_size, keep)
        return tokens if self.norm_pre is None else self.norm_pre(tokens)

    def forward_features(self, images: Tensor) -> Tensor:
        return self._encode(self.embed(images))

    def _encode(self, tokens: Tensor) -> Tensor:
        return self.last_norm(self.run_blocks(self.blocks, postpone_sums(self, tokens)))

    def encode(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the tokens (B, N, D) after the last norm, on any grid of whole patches.

        ``keep`` (B, n) are the patches that become tokens; None keeps all. A patch's position does
        not depend on the selection.
        """
        refuse_bytes(images)
        patch, (height, width) = self.spec.patch_size, images.shape[-2:]
        if height % patch or width % patch:
            raise ValueError(f"patch_size {patch} does not divide images of {height}x{width}")
        grid = height // patch, width // patch
        if self.spec.no_other_grid and (keep is not None or grid != self.grid_size):
            raise ValueError(self.spec.no_other_grid)
        return self._encode(self.embed_patches(images, grid, keep))

    def features(self, images: Tensor) -> Tensor:
        """Return the pooled features (B, D).

        If the head reads only CLS, and no norm mixes CLS with other tokens, the last block computes
        only CLS. Own parts compute all tokens: they may need as many queries as keys.
        """
        slots = ("attention", "ffn", "norm")
        reads_cls = type(self.pool) is ClsPool and len(self.blocks) > 0
        is_own = reads_cls and any(self.spec.row_of(slot).source for slot in slots)
        if is_own or not reads_cls or NORMS[self.spec.norm].is_batch_norm:
            return self.pool(self.forward_features(images))
        *blocks, last = self.blocks
        assert isinstance(last, Block)
        tokens = self.run_blocks(blocks, postpone_sums(self, self.embed(images)))
        return self.pool(self.last_norm(last.forward_first(tokens)))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    @property
    def num_heads(self) -> int:
        return self.spec.num_heads

    @property
    def pool_name(self) -> str:
        return self.spec.pool

    def pool_weights(self, images: Tensor) -> Tensor:
        """Return the share of each token in the pooling: (B, N), rows sum to 1."""
        tokens = self.forward_features(images)
        weights = self.pool.weights(tokens)
        if hasattr(self.pool, "own_part"):
            check_shares(weights, tuple(tokens.shape[:2]), self.pool)
        return weights

    @property
    def has_attention_weights(self) -> bool:
        """Return whether tokens have weights for each other; an own pooling may have none."""
        has_matrix = ATTENTIONS[self.spec.attention].has_attention_matrix
        return len(self.blocks) > 0 and has_matrix and hasattr(self.pool, "weights")

    def attention_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Return the attention weights (B, h, N, N) of some layers, counted from 0, or of all."""
        wanted = chosen_layers(layers, len(self.blocks))
        return self._attend(images, wanted, self.blocks[: max(wanted, default=-1) + 1])[1]

    def forward_with_tokens(
        self, images: Tensor, layers: Sequence[int]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the logits (B, K), and the patches (B, n, D) after the blocks ``layers``, from 1.

        The backward pass recomputes the blocks with ``grad_checkpointing``.
        """
        tokens, found = self.embed(images), {}
        for number, block in enumerate(self.blocks, 1):
            tokens = self.run_blocks([block], tokens)
            found[number] = tokens[:, self.num_prefix_tokens :]
        return self.forward_head(self.last_norm(tokens)), [found[number] for number in layers]

    def forward_with_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the logits (B, K), and the attention weights that they depend on, by layer."""
        tokens, weights = self._attend(images, chosen_layers(layers, len(self.blocks)), self.blocks)
        return self.forward_head(self.last_norm(tokens)), weights

    def forward_with_features(self, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            tokens = self.blocks[:layer](self.embed(images))
        if layer == len(self.blocks):
            features = self.last_norm(tokens).detach().requires_grad_()
            return self.forward_head(features), features
        branch, *others = self.blocks[layer].children()
        assert isinstance(branch, Branch)
        features = branch.inner_input(tokens).detach().requires_grad_()
        tokens = branch.merge(tokens, branch.inner(features))
        for other in others:
            tokens = other(tokens)
        tokens = self.blocks[layer + 1 :](tokens)
        return self.forward_head(self.last_norm(tokens)), features

    @torch.no_grad()
    def states_all(self, images: Tensor) -> bool:
        """Return whether attention computes what its weights say, and no more.

        An own rule may do more, such as a gate or a direct path, which no map of weights shows.
        """
        if not self.spec.row_of("attention").source:
            return True
        tokens = self.embed(images)
        for block in self.blocks:
            assert isinstance(block, Block)
            if not block.states_all(tokens):
                return False
            tokens = block(tokens)
        return True

    def _attend(
        self, images: Tensor, wanted: Sequence[int], blocks: nn.Sequential
    ) -> tuple[Tensor, dict[int, Tensor]]:
        weights: dict[int, Tensor] = {}
        tokens = self.embed(images)
        for i, block in enumerate(blocks):
            if i in wanted:
                assert isinstance(block, Block)
                tokens, weights[i] = block.forward_with_weights(tokens)
            else:
                tokens = block(tokens)
        return tokens, weights


def build_vit(spec: ModelSpec, seed: int | None = None) -> VisionTransformer:
    assert isinstance(spec, VitSpec)
    return VisionTransformer(spec).initialise(seed)
