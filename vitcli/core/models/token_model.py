"""The base class of models that turn an image into tokens.

Axes: B batch, C channels, H W pixels, N tokens (prefix first: CLS, registers), D embed_dim,
K classes.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vitcli.core.make import make, make_part
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.layers import build_norm, build_patch_embed, build_table
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.block import forward_recomputed
from vitcli.core.nn.init import init_parts
from vitcli.core.nn.pool import Pool
from vitcli.core.nn.pos_embed import resize_positions
from vitcli.core.ops.backend import UsesBackend, norm_op_sizes
from vitcli.core.randomness import Draws
from vitcli.core.spec import PatchSpec, TokenSpec
from vitcli.core.spec.slots import HEADS, INITS, POOLS


class TokenModel(UsesBackend, ImageModel):
    """Base class with the embedding of images, the last norm, the pooling and the head.

    Subclasses add the layers in between.
    """

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
        """Return the shape of the embedded images."""
        return TokenShape(
            embed_dim=self.spec.embed_dim,
            grid_size=self.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
            num_heads=self.spec.num_heads,
        )

    def add_head(self, shape: TokenShape) -> None:
        """Build the last norm, the pooling and the head for tokens of this shape."""
        spec = self.spec
        self.norm = build_norm(spec, shape.embed_dim) if spec.has_final_norm else nn.Identity()
        self.pool = make_part(spec, "pool", shape)
        self.head = make(HEADS[spec.head], shape.embed_dim, self.num_classes)

    def init_weights(self, draws: Draws) -> None:
        """Initialise all tensors: first with ``init_parts``, then with the scheme ``spec.init``."""
        init_parts(self, draws)
        make(INITS[self.spec.init], self, draws)

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens of images: (B, C, H, W) -> (B, N, D), prefix first.

        As in the course report, positions are added to the patches before the prefix is prepended.
        With ``pos_embed_prefix`` the prefix has positions too.

        Raises:
            ValueError: The model was built for images of another shape.
        """
        self.check_images(images)
        return self.embed_patches(images, self.grid_size)

    def embed_patches(
        self, images: Tensor, grid_size: tuple[int, int], keep: Tensor | None = None
    ) -> Tensor:
        """Return the tokens of images on a grid of patches, as ``embed`` does.

        Args:
            images: (B, C, H, W). They are not checked.
            grid_size: Rows and columns of patches. A table of positions is resized to this grid.
            keep: (B, n) indices of the patches that become tokens, in reading order; None keeps
                all.
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
        prefix: list[Tensor] = [
            part for part in (self.cls_token, self.reg_tokens) if part is not None
        ]
        if prefix:
            front = torch.cat(prefix, dim=1)
            if first:
                front = front + table[:, :first]
            tokens = torch.cat(
                [front.expand(tokens.shape[0], -1, -1).to(tokens.dtype), tokens], dim=1
            )
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

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return norm_op_sizes(self.norm)

    def last_norm(self, tokens: Tensor) -> Tensor:
        """Return the normalised tokens (B, N, D) from the output of the last block."""
        return self.backend.norm(tokens, self.norm)

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Return the logits: (B, N, D) -> (B, K)."""
        return self.head(self.pool(tokens))
