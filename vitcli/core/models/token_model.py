"""What models of tokens have in common.

Axes: B batch, C channels, H W pixels, N tokens (prefix first: CLS, registers), D embed_dim,
K classes.
"""

import torch
from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.models.image_model import ImageModel
from vitcli.core.nn.attention_rule import TokenShape
from vitcli.core.nn.block import Stream, Tokens, norm_sizes
from vitcli.core.nn.init import own_start
from vitcli.core.nn.norm import build_norm
from vitcli.core.nn.patch_embed import build_patch_embed
from vitcli.core.nn.pool import Pool
from vitcli.core.nn.pos_embed import build_table
from vitcli.core.ops.backend import UsesBackend
from vitcli.core.randomness import Draws
from vitcli.core.spec import PatchSpec, TokenSpec
from vitcli.core.spec.slots import HEADS, INITS, POOLS


class TokenModel(UsesBackend, ImageModel):
    """What models of tokens share: from images to tokens, and from tokens to logits.

    Those who derive from it build what lies between.
    """

    spec: TokenSpec
    grid_size: tuple[int, int]
    """Of the embedded patches."""
    norm: nn.Module
    pool: Pool

    def __init__(self, spec: TokenSpec) -> None:
        super().__init__(spec)
        self.patch_embed, patch_size = self.make_patch_embed(spec)
        height, width = (side // patch_size for side in self.image_shape[1:])
        self.grid_size = (height, width)
        self.num_prefix_tokens = spec.num_prefix_tokens
        dim = spec.embed_dim
        has_cls = POOLS[spec.pool].has_cls_token
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim)) if has_cls else None
        tokens = torch.zeros(1, spec.num_registers, dim)
        self.reg_tokens = nn.Parameter(tokens) if spec.num_registers else None
        self.pos_embed = build_table(spec, self.token_shape)
        self.pos_drop = nn.Dropout(spec.pos_drop)

    def make_patch_embed(self, spec: TokenSpec) -> tuple[nn.Module, int]:
        """From images to patch tokens, and how many pixels lie between two of them."""
        assert isinstance(spec, PatchSpec), "other families make their own"
        return build_patch_embed(spec), spec.patch_size

    @property
    def token_shape(self) -> TokenShape:
        """Of the embedded images."""
        return TokenShape(
            embed_dim=self.spec.embed_dim,
            grid_size=self.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
        )

    def add_head(self, shape: TokenShape) -> None:
        """The last parts, for tokens of this shape."""
        spec = self.spec
        self.norm = build_norm(spec, shape.embed_dim) if spec.has_final_norm else nn.Identity()
        self.pool = make(POOLS[spec.pool], shape)
        self.head = make(HEADS[spec.head], shape.embed_dim, self.num_classes)

    def init_weights(self, draws: Draws) -> None:
        """The scheme that the spec names, over what the parts start with themselves."""
        own_start(self, draws)
        make(INITS[self.spec.init], self, draws)

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
        raise NotImplementedError

    def op_sizes(self) -> dict[str, tuple[int, ...]]:
        return norm_sizes(self.norm)

    def last_norm(self, tokens: Tokens) -> Tensor:
        """What the head reads of the tokens that leave the last block."""
        return self.backend.add_norm(*Stream.of(tokens), self.norm)[1]

    def forward_head(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) -> logits (B, K)."""
        return self.head(self.pool(tokens))
