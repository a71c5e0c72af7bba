"""Numbers about attention and costs equal results by hand."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.inspect.maps import attention_entropy

SHAPE = (6, 8, 10)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("transposed", [False, True])
def test_each_gradient_of_a_convolution_costs_as_much_as_its_forward_pass(groups, transposed):
    made = nn.ConvTranspose2d if transposed else nn.Conv2d
    with torch.device("meta"):
        layer = made(6, 12, 3, stride=2, padding=1, groups=groups)
    batch = {"images": torch.empty(2, *SHAPE)}

    def losses(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": layer(batch["images"].requires_grad_()).sum()}

    places = 8 * 10 if transposed else 4 * 5
    by_hand = 2 * places * 9 * 6 * 12 // groups
    assert forward_flops(layer, SHAPE) == by_hand
    assert step_flops(losses, batch) == 2 * 3 * by_hand


def test_entropy_equals_the_result_by_hand():
    weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])[None]
    assert_close(attention_entropy(weights), torch.tensor([[math.log(2) / 2]]))
    uniform = torch.full((2, 3, 8, 8), 1 / 8)
    assert_close(attention_entropy(uniform), torch.full((2, 3), math.log(8)))
