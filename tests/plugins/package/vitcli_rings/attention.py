import torch
from torch import nn

from vitcli.parts import attention


@attention(name="rings")
class Rings(nn.Module):
    """Attention with a learned factor."""

    def __init__(self, shape):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, q, k, v):
        return self.weights(q, k) @ v

    def weights(self, q, k):
        return (self.factor * q @ k.transpose(-2, -1)).softmax(-1)
