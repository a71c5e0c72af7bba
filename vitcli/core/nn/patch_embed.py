"""From pixels to tokens.

Axes: B batch, C channels, H W pixels, P patch_size, N patches, D embed_dim.
"""

import itertools

import torch
from torch import Tensor, nn

from vitcli.core.make import make
from vitcli.core.nn.linear import Linear
from vitcli.core.randomness import Draws
from vitcli.core.spec import ModelSpec, PatchSpec
from vitcli.core.spec.slots import PATCH_EMBEDS


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Cut into patches in reading order: (B, C, H, W) -> (B, N, C P P)."""
    cut = images.unfold(2, patch_size, patch_size).unfold(3, patch_size, patch_size)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def channels(spec: ModelSpec) -> int:
    if spec.in_chans is None:
        raise ValueError("in_chans is not set")
    return spec.in_chans


class LinearPatches(nn.Module):
    """E x_p + b for each flattened patch: (B, C, H, W) -> (B, N, D).

    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929. The same map as a convolution with
    stride and kernel P. ``patch_pre_norm`` puts a LayerNorm over the raw patch.
    """

    def __init__(self, spec: PatchSpec) -> None:
        super().__init__()
        self.patch_size = spec.patch_size
        length = channels(spec) * spec.patch_size**2
        self.norm = nn.LayerNorm(length) if spec.patch_pre_norm else nn.Identity()
        self.proj = Linear(length, spec.embed_dim, bias=spec.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.norm(patchify(images, self.patch_size)))


class ConvPatches(nn.Module):
    """A convolution with kernel and stride P: (B, C, H, W) -> (B, N, D)."""

    def __init__(self, spec: PatchSpec) -> None:
        super().__init__()
        size = spec.patch_size
        self.proj = nn.Conv2d(channels(spec), spec.embed_dim, size, size, bias=spec.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).mT


def channels_last(images: Tensor) -> Tensor:
    """The memory layout in which a CPU pools and convolves fastest, and tokens need no copy."""
    return images.contiguous(memory_format=torch.channels_last)


def halving_widths(spec: PatchSpec) -> list[int]:
    """Channels before and after each layer that halves the sides, until a patch is one pixel."""
    halvings = spec.patch_size.bit_length() - 1
    if spec.patch_size != 2**halvings or halvings == 0:
        raise ValueError(
            f"{spec.patch_embed} needs a patch_size of 2, 4, 8, ..., got {spec.patch_size}"
        )
    widths = [max(1, spec.embed_dim >> i) for i in reversed(range(halvings))]
    if spec.stem_width:
        widths[:-1] = [spec.stem_width] * (halvings - 1)
    return [channels(spec), *widths]


class ConvStem(nn.Module):
    """3x3 convolutions of stride 2 down to the grid, then a 1x1: (B, C, H, W) -> (B, N, D).

    Xiao et al. 2021, https://arxiv.org/abs/2106.14881: conv, BatchNorm, ReLU, doubling widths
    (or ``stem_width``).
    Unlike there, no block is taken away from the transformer in exchange.
    """

    def __init__(self, spec: PatchSpec) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(halving_widths(spec)):
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        self.stem = nn.Sequential(*layers)
        self.proj = nn.Conv2d(spec.embed_dim, spec.embed_dim, 1, bias=spec.patch_bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.stem(channels_last(images))).flatten(2).mT


class ConvTokenizer(nn.Module):
    """3x3 convolution, ReLU, max-pooling of stride 2, down to the grid: (B, C, H, W) -> (B, N, D).

    Hassani et al. 2021, https://arxiv.org/abs/2104.05704: pooling windows are 3x3, widths double.
    The first convolution sees every pixel, where ``ConvStem`` steps over every other one.
    The paper has 64 channels at every layer but the last (``stem_width``); unless it is set they
    are D / 2, D / 4 and so on here. Filters start as the authors' do, N(0, 2 / n_in).
    """

    def __init__(self, spec: PatchSpec) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(halving_widths(spec)):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=spec.patch_bias)
            layers += [conv, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        self.stem = nn.Sequential(*layers)

    def init_weights(self, draws: Draws) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                generator = draws(f"{name}.weight")
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.stem(channels_last(images)).flatten(2).mT


def build_patch_embed(spec: PatchSpec) -> nn.Sequential:
    """The slot's row, and a LayerNorm over the embedded patch where ``patch_post_norm`` asks."""
    layers: list[nn.Module] = [make(PATCH_EMBEDS[spec.patch_embed], spec)]
    if spec.patch_post_norm:
        layers.append(nn.LayerNorm(spec.embed_dim))
    return nn.Sequential(*layers)
