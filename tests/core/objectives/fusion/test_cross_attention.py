"""Cross-attention equals torch's and treats the other sequence as a set."""

import torch
from torch import nn
from torch.testing import assert_close

from vitcli.core.objectives.fusion.model import CrossAttention


def layer_and_inputs() -> tuple[CrossAttention, torch.Tensor, torch.Tensor]:
    layer = CrossAttention(12, 3).double()
    return layer, torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()


def test_it_equals_torchs_multihead_attention():
    layer, tokens, others = layer_and_inputs()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    parts = [layer.query, layer.key, layer.value]
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(layer.proj.state_dict())
    assert_close(layer(tokens, others), theirs(tokens, others, others)[0])
