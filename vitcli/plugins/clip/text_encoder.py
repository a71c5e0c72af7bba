"""A transformer that encodes captions. Axes: B batch, L tokens of a caption, V tokens, D width."""

from functools import partial

import torch
from torch import Tensor, nn

from vitcli.core.models.layers import plain_block
from vitcli.core.nn.attention import Position, TokenShape
from vitcli.core.nn.init import xavier_normal
from vitcli.core.nn.pos_embed import Learned
from vitcli.core.randomness import keyed_generator
from vitcli.plugins.clip.spec import ClipSpec
from vitcli.plugins.clip.tokens import (
    END,
    NUM_SPECIAL,
    WORD_BYTES,
    Encode,
    encode_bytes,
    from_table,
    to_table,
    word_encoder,
)

TOKEN_STD, POSITION_STD = 0.02, 0.01


class CausalMask(Position):
    """A bias of the attention scores that hides later tokens: 0 or minus infinity, (1, 1, L, L)."""

    mask: Tensor
    not_averaged = ("mask",)
    """The mean of two infinities is not a number."""

    def __init__(self, length: int) -> None:
        super().__init__()
        hidden = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("mask", hidden[None, None], persistent=False)

    def bias(self) -> Tensor:
        return self.mask


class TextEncoder(nn.Module):
    """Tokens (B, L) int64 -> features (B, D) at the end of each caption.

    As in CLIP, a token attends to earlier tokens only, blocks are pre-norm, and the features are
    those of the end token after the last norm. So padding after the end has no effect. Deviations
    from CLIP: the size, words or bytes instead of byte pairs, GELU instead of its approximation,
    and Glorot's initial weights in the blocks.

    Radford et al. 2021, https://arxiv.org/abs/2103.00020
    """

    vocabulary: Tensor
    """Words as bytes (V, 32) uint8, saved with the weights; (0, 32) for a tokeniser of bytes."""

    def __init__(self, spec: ClipSpec, num_words: int) -> None:
        super().__init__()
        self.reads_bytes = spec.tokenizer == "bytes"
        self.length, dim = spec.length, spec.text_dim
        num_words = 0 if self.reads_bytes else num_words
        self.register_buffer("vocabulary", torch.zeros(num_words, WORD_BYTES, dtype=torch.uint8))
        num_tokens = NUM_SPECIAL + (256 if self.reads_bytes else num_words)
        self.token_embed = nn.Embedding(num_tokens, dim)
        shape = TokenShape(
            embed_dim=dim,
            num_heads=spec.text_heads,
            grid_size=(1, self.length),
            num_prefix_tokens=0,
        )
        self.pos_embed = Learned(shape)
        masks = [CausalMask(self.length) for _ in range(spec.text_depth)]
        self.blocks = nn.Sequential(*[plain_block(shape, 4 * dim, mask) for mask in masks])
        self.norm = nn.LayerNorm(dim)

    def initialise(self, seed: int) -> None:
        """Fill all weights; each depends only on the seed and its name."""
        if self.token_embed.weight.is_meta:
            return
        draws = partial(keyed_generator, "init", seed, "text")
        xavier_normal(self, draws)
        tokens, positions = self.token_embed.weight, self.pos_embed.table
        nn.init.normal_(tokens, std=TOKEN_STD, generator=draws("token_embed"))
        nn.init.normal_(positions, std=POSITION_STD, generator=draws("pos_embed"))

    def set_vocabulary(self, words: list[str]) -> None:
        """Store the words of a tokeniser of words; the order gives their numbers."""
        if not self.vocabulary.is_meta:
            self.vocabulary.copy_(to_table(words, len(self.vocabulary)))

    def words(self) -> list[str]:
        return from_table(self.vocabulary)

    def encoder(self) -> Encode:
        return encode_bytes if self.reads_bytes else word_encoder(self.words())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embed(tokens) + self.pos_embed()
        x = self.blocks(x)
        end = (tokens == END).int().argmax(1)  # (B,)
        return self.norm(x[torch.arange(len(x), device=x.device), end])
