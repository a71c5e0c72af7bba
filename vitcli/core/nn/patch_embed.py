"""Patch embeddings: layers that turn pixels into tokens.

Axes: B batch, C channels, H W pixels, P patch_size, N patches, D embed_dim.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.ops.backend import Linear
from vitcli.core.randomness import Draws


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Return flattened patches in reading order: (B, C, H, W) -> (B, N, C P P)."""
    cut = images.unfold(2, patch_size, patch_size).unfold(3, patch_size, patch_size)
    return cut.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, patch_size: int, grid_size: tuple[int, int]) -> Tensor:
    """Return the images of flattened patches: (B, N, C P P) -> (B, C, H, W)."""
    cut = patches.unflatten(1, grid_size).unflatten(-1, (-1, patch_size, patch_size))
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


class LinearPatches(nn.Module):
    """A linear map E x_p + b of each flattened patch: (B, C, H, W) -> (B, N, D).

    Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929. A convolution with stride
    and kernel P is the same map. ``pre_norm`` adds a LayerNorm over the raw patch.
    """

    def __init__(
        self, in_chans: int, patch_size: int, dim: int, *, bias: bool = True, pre_norm: bool = False
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        length = in_chans * patch_size**2
        self.norm = nn.LayerNorm(length) if pre_norm else nn.Identity()
        self.proj = Linear(length, dim, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.norm(patchify(images, self.patch_size)))


class ShiftedPatches(LinearPatches):
    """A linear map of each patch, joined with its surroundings: (B, C, H, W) -> (B, N, D).

    Shifted Patch Tokenization of Lee et al. 2021, https://arxiv.org/abs/2112.13492. The image and
    its copies, shifted by half a patch along both diagonals, are stacked as 5 C channels. Each
    patch of the stack is flattened, normalised by LayerNorm and mapped to D features. Pixels from
    outside the image are 0. Half of an odd patch is rounded down.
    """

    def __init__(self, in_chans: int, patch_size: int, dim: int, *, bias: bool = True) -> None:
        super().__init__(5 * in_chans, patch_size, dim, bias=bias, pre_norm=True)

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(self.stack(images))

    def stack(self, images: Tensor) -> Tensor:
        """Return the image and its four shifts (down-right, down-left, up-right, up-left)."""
        height, width = images.shape[-2:]
        half = self.patch_size // 2
        padded = F.pad(images, (half, half, half, half))
        starts = [(row, column) for row in (0, 2 * half) for column in (0, 2 * half)]
        shifted = [padded[:, :, i : i + height, j : j + width] for i, j in starts]
        return torch.cat([images, *shifted], dim=1)


class ConvPatches(nn.Module):
    """A convolution with kernel and stride P: (B, C, H, W) -> (B, N, D)."""

    def __init__(self, in_chans: int, patch_size: int, dim: int, *, bias: bool = True) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).mT


def channels_last(images: Tensor) -> Tensor:
    """Return images in the layout that a CPU convolves fastest; tokens of it need no copy."""
    return images.contiguous(memory_format=torch.channels_last)


def halving_widths(
    name: str, in_chans: int, patch_size: int, dim: int, width: int | None
) -> list[int]:
    """Return the number of channels of the image, and of each layer that halves the sides.

    There are log2(P) layers. The last has ``dim`` channels. The others have ``width``, or half of
    the channels of the layer after them.
    """
    halvings = patch_size.bit_length() - 1
    if patch_size != 2**halvings or halvings == 0:
        raise ValueError(f"{name} needs a patch_size of 2, 4, 8, ..., got {patch_size}")
    widths = [width or max(1, dim >> i) for i in reversed(range(1, halvings))]
    return [in_chans, *widths, dim]


class ConvStem(nn.Module):
    """3x3 convolutions of stride 2, then a 1x1 convolution: (B, C, H, W) -> (B, N, D).

    Xiao et al. 2021, https://arxiv.org/abs/2106.14881. BatchNorm and ReLU follow each 3x3
    convolution. The widths double, or are ``width``. Deviation: the paper removes one transformer
    block in exchange, and this class does not.
    """

    def __init__(
        self,
        in_chans: int,
        patch_size: int,
        dim: int,
        *,
        bias: bool = True,
        width: int | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = halving_widths("conv_stem", in_chans, patch_size, dim, width)
        for before, after in itertools.pairwise(widths):
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        self.stem = nn.Sequential(*layers)
        self.proj = nn.Conv2d(dim, dim, 1, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(self.stem(channels_last(images))).flatten(2).mT


class ConvTokenizer(nn.Module):
    """Layers of 3x3 convolution, ReLU and max-pooling of stride 2: (B, C, H, W) -> (B, N, D).

    Hassani et al. 2021, https://arxiv.org/abs/2104.05704, with 3x3 pooling windows. The first
    convolution has stride 1, the one of ``ConvStem`` has stride 2. Deviation: the paper has 64
    channels in all layers except the last; ``width=64`` sets this. Without ``width`` the last layer
    has D channels, the layer before it D / 2, then D / 4, and so on. Filters start as in the
    authors' code, N(0, 2 / n_in).
    """

    def __init__(
        self,
        in_chans: int,
        patch_size: int,
        dim: int,
        *,
        bias: bool = True,
        width: int | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        widths = halving_widths("conv_tokenizer", in_chans, patch_size, dim, width)
        for before, after in itertools.pairwise(widths):
            conv = nn.Conv2d(before, after, 3, padding=1, bias=bias)
            layers += [conv, nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]
        self.stem = nn.Sequential(*layers)

    def init_weights(self, draws: Draws) -> None:
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d):
                generator = draws(f"{name}.weight")
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)

    def forward(self, images: Tensor) -> Tensor:
        return self.stem(channels_last(images)).flatten(2).mT
