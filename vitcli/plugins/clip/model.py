"""An image encoder and a text encoder with a joint space: the model of contrastive training.

Axes: B batch, C channels, H W pixels, L tokens of a caption, V tokens of a vocabulary, D width of
the text encoder, E width of the joint space.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.models.image_model import build_model
from vitcli.core.models.layers import plain_block
from vitcli.core.nn.attention import Position, TokenShape
from vitcli.core.nn.init import xavier_normal
from vitcli.core.nn.pos_embed import Learned
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import keyed_generator
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.clip import tokens as token
from vitcli.plugins.clip.captions import KINDS, CaptionBook
from vitcli.plugins.clip.spec import ClipSpec

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
        self.register_buffer(
            "vocabulary", torch.zeros(num_words, token.WORD_BYTES, dtype=torch.uint8)
        )
        num_tokens = token.NUM_SPECIAL + (256 if self.reads_bytes else num_words)
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
            self.vocabulary.copy_(token.to_table(words, len(self.vocabulary)))

    def words(self) -> list[str]:
        return token.from_table(self.vocabulary)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Return captions as tokens (n, L), on the device of the weights."""
        tokens = token.tokenize(texts, self.encoder(), self.length)
        return tokens.to(self.token_embed.weight.device)

    def encoder(self) -> token.Encode:
        return token.encode_bytes if self.reads_bytes else token.word_encoder(self.words())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embed(tokens) + self.pos_embed()
        x = self.blocks(x)
        end = (tokens == token.END).int().argmax(1)  # (B,)
        return self.norm(x[torch.arange(len(x), device=x.device), end])


START_SCALE = 1 / 0.07
"""Initial factor of the similarities: the inverse of the temperature."""


def clip_spec(spec: ExperimentSpec) -> ClipSpec:
    return cast(ClipSpec, spec.task)


def caption_book(spec: ExperimentSpec) -> CaptionBook:
    if spec.data.class_names is None:
        raise ValueError("data.class_names must be set to write captions")
    return KINDS[clip_spec(spec).captions].book(spec.data.class_names)


class ImageTextModel(nn.Module):
    """An image encoder and a text encoder with a joint space.

    Two linear maps without bias and a learned logarithm of the scale, as in CLIP.
    """

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        task = clip_spec(spec)
        self.encoder = build_model(spec.model, spec.seed)
        words = None
        if task.captions != "folder":
            texts = (text for row in caption_book(spec).train for text in row)
            words = sorted({word for text in texts for word in token.split_words(text)})
        size = task.vocabulary_size - token.NUM_SPECIAL if words is None else len(words)
        self.text = TextEncoder(task, size)
        self.image_projection = Linear(self.encoder.num_features, task.joint_dim, bias=False)
        self.text_projection = Linear(task.text_dim, task.joint_dim, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(START_SCALE)))
        self.text.initialise(spec.seed)
        for name, layer in self.named_children():
            if isinstance(layer, nn.Linear) and not layer.weight.is_meta:
                generator = keyed_generator("init", spec.seed, f"{name}.weight")
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5, generator=generator)
        if words is not None and not self.text.reads_bytes:
            self.text.set_vocabulary(words)

    def encode_images(self, images: Tensor) -> Tensor:
        """Return unit vectors: (B, C, H, W) -> (B, E) fp32."""
        return F.normalize(self.image_projection(self.encoder.features(images)).float(), dim=-1)

    def encode_texts(self, tokens: Tensor) -> Tensor:
        """Return unit vectors: (B, L) int64 -> (B, E) fp32."""
        return F.normalize(self.text_projection(self.text(tokens)).float(), dim=-1)

    def forward(self, images: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit vectors of images and of their captions, each (B, E)."""
        return self.encode_images(images), self.encode_texts(tokens)
