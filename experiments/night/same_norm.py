"""A norm that computes the same as the built-in rms_norm, rounded otherwise."""

import torch
from torch import nn

from vitcli.parts import norm


@norm(name="rms_norm_by_hand")
class RmsNormByHand(nn.Module):
    """The built-in rms_norm, with a root and a division."""

    def __init__(self, dim, *, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):  # (B, N, D) -> (B, N, D)
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight
