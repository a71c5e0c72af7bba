"""A Vision Transformer and the decoder that reconstructs masked patches from its tokens.

``visible`` (B, n) and ``masked`` (B, m) are indices of patches in reading order, int64.
Axes: B batch, C channels, H W pixels, P patch_size, N patches, n visible patches, m masked patches,
p prefix tokens, D embed_dim, F features, L = C P P pixels of a patch, K classes.
"""

import torch
from torch import Tensor, nn

from vitcli.core.models.layers import plain_block
from vitcli.core.models.vit import VisionTransformer, build_vit
from vitcli.core.nn.attention import TokenShape
from vitcli.core.nn.init import STD, xavier_normal
from vitcli.core.nn.norm import EPS as NORM_EPS
from vitcli.core.nn.patch_embed import patchify
from vitcli.core.nn.pos_embed import grid_positions, sincos2d
from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import Draws, keyed_generator
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.mae.spec import MaskingSpec


def split_patches(noise: Tensor, num_masked: int) -> tuple[Tensor, Tensor]:
    """Return the visible and the masked patches of each image: those with less and more noise.

    ``noise`` (B, N) is uniform, so every selection is equally likely. He et al. 2022,
    https://arxiv.org/abs/2111.06377. Equal noise is resolved in reading order, so a selection does
    not depend on the device.
    """
    order = noise.argsort(dim=1, stable=True)
    count = noise.shape[1] - num_masked
    return order[:, :count], order[:, count:]


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Return the tokens at some indices: (B, N, F), (B, n) -> (B, n, F)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def put(tokens: Tensor, index: Tensor, into: Tensor) -> Tensor:
    """Return ``into`` (B, N, F) with ``tokens`` (B, n, F) at the indices (B, n)."""
    return into.scatter(1, index[..., None].expand_as(tokens), tokens.to(into.dtype))


def nearest_visible(visible: Tensor, masked: Tensor, grid_size: tuple[int, int]) -> Tensor:
    """Return for each masked patch the nearest visible patch, as an index of patches (B, m).

    The distance is Euclidean. Of equally near patches, the first in reading order is taken.
    """
    rows, columns = (place.to(visible.device) for place in grid_positions(grid_size))
    count = len(rows)
    down, right = (place[:, None] - place[None] for place in (rows, columns))
    squared = down * down + right * right  # (N, N)
    found = squared[masked].gather(2, visible[:, None].expand(-1, masked.shape[1], -1))
    first = (found * count + visible[:, None]).argmin(2)  # (B, m), places in ``visible``
    return visible.gather(1, first)


EPS = 1e-6
"""Added to the variance of a patch by ``norm_pix``, as in the paper's code."""


class Decoder(nn.Module):
    """Tokens of the visible patches (B, p + n, D) -> pixels of the masked patches (B, m, L).

    A mask token stands for each masked patch. The decoder's own positions are fixed sines and
    cosines. Deviations from the paper: the blocks have the encoder's ``mlp_ratio`` (the paper has 4
    in both), and weights start from a normal instead of a uniform Xavier distribution.
    He et al. 2022, https://arxiv.org/abs/2111.06377
    """

    pos_embed: Tensor

    def __init__(self, encoder: VisionTransformer, task: MaskingSpec) -> None:
        super().__init__()
        spec, dim = encoder.spec, task.decoder_dim
        self.num_prefix_tokens = encoder.num_prefix_tokens
        shape = TokenShape(
            embed_dim=dim,
            grid_size=encoder.grid_size,
            num_prefix_tokens=self.num_prefix_tokens,
            num_heads=task.decoder_num_heads,
        )
        hidden = max(1, int(dim * (spec.hidden_dim / spec.embed_dim)))
        self.embed = Linear(spec.embed_dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        positions = sincos2d(encoder.grid_size, dim)[None]
        self.register_buffer("pos_embed", positions, persistent=False)
        blocks = [plain_block(shape, hidden) for _ in range(task.decoder_depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim, NORM_EPS)
        self.predict = Linear(dim, encoder.image_shape[0] * spec.patch_size**2)

    def init_weights(self, draws: Draws) -> None:
        xavier_normal(self, draws)
        nn.init.normal_(self.mask_token, std=STD, generator=draws("mask_token"))

    def forward(self, tokens: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        """Return the pixels of masked patches: (B, p + n, D), (B, n), (B, m) -> (B, m, L)."""
        tokens = self.embed(tokens)
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        count = visible.shape[1] + masked.shape[1]
        everywhere = self.mask_token.expand(len(patches), count, -1)
        patches = put(patches, visible, everywhere) + self.pos_embed
        tokens = self.blocks(torch.cat([prefix.to(patches.dtype), patches], dim=1))
        return self.predict(take(self.norm(tokens[:, self.num_prefix_tokens :]), masked))


class MaskedModel(nn.Module):
    """An encoder that sees the visible patches of an image, and a decoder of the masked ones."""

    def __init__(self, spec: ExperimentSpec) -> None:
        super().__init__()
        assert isinstance(spec.task, MaskingSpec)
        self.encoder = build_vit(spec.model, spec.seed)
        self.num_masked = spec.task.num_masked(self.encoder.num_patches)
        if not 0 < self.num_masked < self.encoder.num_patches:
            spec.task.check(self.encoder.spec, spec.data, spec.train)
        self.norm_pix = spec.task.norm_pix
        self.decoder = Decoder(self.encoder, spec.task)
        if not self.decoder.mask_token.is_meta:
            seed = spec.seed
            self.decoder.init_weights(lambda name: keyed_generator("init", seed, f"decoder.{name}"))

    def patches(self, images: Tensor) -> Tensor:
        """Return the pixels of all patches: (B, C, H, W) -> (B, N, L)."""
        return patchify(images, self.encoder.spec.patch_size)

    def split(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the visible (B, n) and the masked patches (B, m) for noise (B, N)."""
        return split_patches(noise, self.num_masked)

    def targets(self, pixels: Tensor) -> Tensor:
        """Return what is predicted for the pixels of patches: (..., L) -> (..., L)."""
        if not self.norm_pix:
            return pixels
        variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
        return (pixels - mean) / (variance + EPS).sqrt()

    def predict(self, images: Tensor, visible: Tensor, masked: Tensor) -> Tensor:
        """Return the targets (B, m, L) that the visible patches suggest for the masked patches."""
        return self.decoder(self.encoder.encode(images, visible), visible, masked)

    def errors(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return the mean squared error over the patches that the noise (B, N) masks, (B,) fp32."""
        visible, masked = self.split(noise)
        wanted = self.targets(take(self.patches(images), masked))
        found = self.predict(images, visible, masked).float()
        return (found - wanted).square().mean((1, 2))


class MaskedAutoencoder(MaskedModel):
    """Images (B, C, H, W) and noise (B, N) -> errors (B,) of the masked patches."""

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        return self.errors(images, noise)
