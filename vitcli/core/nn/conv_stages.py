"""Convolutional stages after a fixed whitening: those of a small network, and as a patch embedding.

The layers of airbench94: Jordan 2024, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
https://arxiv.org/abs/2404.00498. Axes: B batch, C channels, H W pixels, N patches, D embed_dim.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.patch_embed import channels_last, halving_widths
from vitcli.core.randomness import Draws

BIAS_RATE = 64
"""Learning rate of the biases as a multiple of the other parameters' rate."""


def cosines(size: int) -> Tensor:
    """Return the orthonormal cosine transform of ``size`` numbers, one vector a row."""
    places = (torch.arange(size, dtype=torch.float64) + 0.5) * math.pi / size
    table = torch.cos(torch.arange(size)[:, None] * places) * math.sqrt(2 / size)
    table[0] *= math.sqrt(0.5)
    return table


class Whitening(nn.Module):
    """Fixed 2x2 filters and batch norm: (B, C, H, W) -> (B, 8 C, H - 1, W - 1).

    Deviation: the paper takes the eigenvectors of the training set's 2x2 patches, divided by the
    roots of their eigenvalues. Here, the filters are a cosine transform over colours, rows and
    columns, and batch norm measures the variances, so the model needs no images before its
    training. On 1,000 images of CIFAR-10, this reduces the condition number of the correlations
    from 14,000 to 2. As in the paper, the negative of each filter is a filter too.
    Deviation: the paper stops training the biases after three epochs.
    """

    filters: Tensor

    def __init__(self, in_chans: int) -> None:
        super().__init__()
        basis = torch.einsum("ac,br,ds->abdcrs", cosines(in_chans), cosines(2), cosines(2))
        basis = basis.flatten(0, 2).float()
        self.register_buffer("filters", torch.cat([basis, -basis]), persistent=False)
        self.norm = Norm(len(self.filters))

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(F.conv2d(channels_last(images), self.filters))


class Norm(nn.Module):
    """Batch norm with a bias and no scale, then GELU: (B, C, H, W) -> (B, C, H, W).

    The paper trains the biases at 64 times the learning rate. Here, the parameter is the bias
    divided by 8, the root of 64. Under SGD, with weight decay on all parameters, both are the same.
    Deviation: epsilon is torch's 1e-5, not 1e-12.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width, momentum=0.4, affine=False)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        bias = math.sqrt(BIAS_RATE) * self.bias
        return F.gelu(self.norm(x) + bias[:, None, None])


def convolution(before: int, after: int) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel_size=3, padding=1, bias=False)


def build_stage(before: int, after: int) -> nn.Sequential:
    """Return a stage that halves the sides, rounded down: (B, before, H, W) -> (B, after, ...)."""
    return nn.Sequential(
        convolution(before, after),
        nn.MaxPool2d(2),
        Norm(after),
        convolution(after, after),
        Norm(after),
    )


def fill_weights(module: nn.Module, draws: Draws) -> None:
    """Fill convolutions and linear layers.

    The weights have the distribution of torch's layers. As far as a convolution has input channels,
    its first output channels are copies of them, as in the paper.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            limit = layer.weight[0].numel() ** -0.5
            generator = draws(f"{name}.weight")
            nn.init.uniform_(layer.weight, -limit, limit, generator=generator)
        if isinstance(layer, nn.Conv2d):
            nn.init.dirac_(layer.weight.data[: layer.in_channels])


class WhitenedStages(nn.Module):
    """Whitening and log2(P) stages of two 3x3 convolutions: (B, C, H, W) -> (B, N, D).

    The last stage has D channels; the others have ``width``, or half of the channels of the stage
    after them. Deviation: a row and a column of zeros at the end keep the size before the whitening
    filters, so that each patch has a token.
    """

    def __init__(
        self, in_chans: int, patch_size: int, dim: int, *, width: int | None = None
    ) -> None:
        super().__init__()
        widths = halving_widths("whitened_stages", in_chans, patch_size, dim, width)
        self.stem = Whitening(in_chans)
        widths[0] = len(self.stem.filters)
        self.stages = nn.Sequential(*itertools.starmap(build_stage, itertools.pairwise(widths)))

    def init_weights(self, draws: Draws) -> None:
        fill_weights(self, draws)

    def forward(self, images: Tensor) -> Tensor:
        return self.stages(self.stem(F.pad(images, (0, 1, 0, 1)))).flatten(2).mT
