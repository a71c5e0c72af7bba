"""Numbers about attention, features and costs equal results by hand."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from vitcli.core.inspect.components import patch_colours
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.inspect.statistics import (
    attention_distance,
    attention_entropy,
    head_similarity,
    near_share,
    patch_distances,
    patch_weights,
    uniform_distance,
    uniform_near_share,
)


def draw(spreads: list[float]) -> Tensor:
    """Return features (4, 9, D) with a standard deviation for each of D rotated directions."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 9, len(spreads), generator=generator, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(len(spreads), len(spreads), generator=generator).double())
    return rows * torch.tensor(spreads).double() @ turn


def test_shares_and_channels_are_those_of_the_covariance():
    features = draw([9.0, 3.0, 1.0, 0.1])
    colours, shares = patch_colours(features)
    rows, channels = features.flatten(0, 1), colours.flatten(0, 1)
    values, directions = (found.flip(-1) for found in torch.linalg.eigh(rows.T.cov()))
    assert_close(torch.tensor(shares).double(), (values / values.sum())[:3])
    for channel in range(3):
        scores = (rows - rows.mean(0)) @ directions[:, channel]
        inside = (channels[:, channel] - 0.5).abs() < 0.499  # the middle 98 % are not clipped
        pair = torch.stack([scores[inside], channels[inside, channel]])
        assert pair.corrcoef()[0, 1].abs() == pytest.approx(1, abs=1e-6)


def test_colours_fill_the_range_and_do_not_depend_on_scale_and_shift():
    features = draw([5.0, 3.0, 2.0, 1.0])
    colours, shares = patch_colours(features)
    assert colours.amin((0, 1)).tolist() == [0, 0, 0]
    assert colours.amax((0, 1)).tolist() == [1, 1, 1]
    again, same = patch_colours(3 * features + 7)
    assert_close(again, colours)
    assert_close(same, shares)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_missing_component_is_grey(width):
    features = torch.zeros(2, 3, width)
    features[..., 0] = torch.arange(6.0).view(2, 3)
    colours, shares = patch_colours(features)
    assert shares == pytest.approx([1, 0, 0])
    assert (colours[..., 1:] == 0.5).all()
    assert colours[..., 0].min() == 0


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


def test_distances_are_pixels_between_patch_centres():
    found = patch_distances((2, 3), patch_size=4)
    first = [0.0, 4, 8, 4, math.hypot(4, 4), math.hypot(4, 8)]
    assert_close(found[0], torch.tensor(first).double())
    assert_close(found, found.T)


def test_distance_equals_the_result_by_hand():
    # Two patches are 4 pixels apart. In head 0 a patch attends to itself, in head 1 to the other
    # patch, in head 2 half to the other patch and half to CLS. CLS has no position and is left out.
    to_self = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    to_other = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 1, 0]])
    half = torch.tensor([[1.0, 0, 0], [0.5, 0, 0.5], [0.5, 0.25, 0.25]])
    weights = torch.stack([to_self, to_other, half])[None]
    assert_close(attention_distance(weights, (1, 2), 4), torch.tensor([[0.0, 4.0, 3.0]]))
    assert_close(patch_weights(weights, (1, 2))[0, 2], torch.tensor([[0.0, 1.0], [0.5, 0.5]]))


def test_uniform_attention_has_the_mean_distance_of_all_pairs():
    weights = torch.full((1, 1, 13, 13), 1 / 13)
    found = attention_distance(weights, (3, 4), 2).item()
    assert found == pytest.approx(uniform_distance((3, 4), 2))
    assert uniform_distance((1, 2), 4) == 2.0, "0 and 4 pixels, equally often"


def test_entropy_equals_the_result_by_hand():
    weights = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])[None]
    assert_close(attention_entropy(weights), torch.tensor([[math.log(2) / 2]]))
    uniform = torch.full((2, 3, 8, 8), 1 / 8)
    assert_close(attention_entropy(uniform), torch.full((2, 3), math.log(8)))


def test_similarity_equals_the_result_by_hand():
    one, other = torch.eye(2), torch.eye(2).flip(0)
    weights = torch.stack([one, other, (one + other) / 2])[None]
    for batch in (weights, torch.cat([weights, weights])):
        assert head_similarity(batch).item() == pytest.approx((0 + 2 * math.sqrt(0.5)) / 3)
    assert head_similarity(weights[:, :1]).isnan()


def test_the_share_near_a_patch_equals_the_result_by_hand():
    # In 1x3 patches, neighbours touch; the first and the third do not. In 2x2 patches, all touch.
    weights = torch.tensor([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2]])[None, None]
    assert near_share(weights, (1, 3)).item() == pytest.approx((0.5 + 1.0 + 0.4) / 3)
    assert uniform_near_share((1, 3)) == pytest.approx(7 / 9)
    assert uniform_near_share((2, 2)) == 1.0
    uniform = near_share(torch.full((1, 1, 17, 17), 1 / 17), (4, 4))
    assert uniform.item() == pytest.approx(uniform_near_share((4, 4)))
