"""Parts that compute the same as built-in ones, so no difference from those is real.

Layers of another name get other initial values from the same seed; a mean or a product in another
order is rounded otherwise.
"""

import torch
from torch import nn

from vitcli.parts import attention, ffn, norm, patch_embed


class Renamed(nn.Module):
    def __init__(self, shape, *, hidden_dim):
        super().__init__()
        self.enter = nn.Linear(shape.embed_dim, hidden_dim)
        self.leave = nn.Linear(hidden_dim, shape.embed_dim)

    def forward(self, x):  # (B, N, D) -> (B, N, D)
        return self.leave(nn.functional.gelu(self.enter(x)))


@ffn(name="gelu_renamed")
class GeluRenamed(Renamed):
    """The built-in gelu, with other names of its layers."""


@ffn(name="gelu_inside")
class GeluInside(nn.Module):
    """The built-in gelu, one level deeper."""

    def __init__(self, shape, *, hidden_dim):
        super().__init__()
        self.inner = Renamed(shape, hidden_dim=hidden_dim)

    def forward(self, x):
        return self.inner(x)


@attention(name="softmax_by_hand")
class SoftmaxByHand(nn.Module):
    """The built-in softmax attention, with a softmax of three operations."""

    def __init__(self, shape):
        super().__init__()
        self.scale = shape.head_dim**-0.5

    def weights(self, q, k):  # (B, h, N, d) twice -> (B, h, N, N)
        scores = q @ k.mT * self.scale
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    def forward(self, q, k, v):
        return self.weights(q, k) @ v


@norm(name="layer_norm_by_hand")
class LayerNormByHand(nn.Module):
    """The built-in layer_norm, with its mean and its variance computed one after the other."""

    def __init__(self, dim, *, eps=1e-6):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred * (variance + self.eps).rsqrt() * self.weight + self.bias


@patch_embed(name="linear_renamed")
class LinearRenamed(nn.Module):
    """The built-in linear embedding of patches, with another name of its layer."""

    def __init__(self, in_chans, patch_size, embed_dim, *, bias=True):
        super().__init__()
        self.of_patch = nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size, bias=bias)

    def forward(self, images):  # (B, C, H, W) -> (B, N, D)
        return self.of_patch(images).flatten(2).mT
