"""Numbers about attention, features and costs equal results by hand."""

import itertools
import math
import re

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from tests.core.specs import build
from vitcli.core.inspect.components import patch_colours
from vitcli.core.inspect.cost import forward_flops, step_flops
from vitcli.core.inspect.faithfulness import (
    area,
    centre_map,
    probability_curve,
    ranks,
    removal_counts,
)
from vitcli.core.inspect.randomisation import cascade_parts, randomised_cascade, rank_correlation
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


class Adds(torch.nn.Module):
    """A model whose logit of class 1 is a weighted sum over the four 2x2 patches of an image."""

    weights = torch.tensor([[3.0, 1.0], [-2.0, 0.5]])

    def forward(self, images: Tensor) -> Tensor:
        cells = images.unfold(2, 2, 2).unfold(3, 2, 2).mean((1, 4, 5))  # (B, 2, 2)
        logit = (cells * self.weights).sum((1, 2))
        return torch.stack([torch.zeros_like(logit), logit], dim=1)


ONES = torch.ones(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("inserts", "logits"),
    [(False, [2.5, -0.5, -1.5, -2.0, 0.0]), (True, [0.0, 3.0, 4.0, 4.5, 2.5])],
)
def test_the_highest_patches_are_deleted_and_inserted_first(inserts, logits):
    maps, classes = Adds.weights[None], torch.tensor([1])
    curve = probability_curve(Adds(), ONES, maps, classes, [0, 1, 2, 3, 4], inserts=inserts)
    assert curve[0].logit().tolist() == pytest.approx(logits, abs=1e-5)


def test_each_image_uses_its_own_map_and_class():
    maps = torch.stack([Adds.weights, -Adds.weights])
    images, classes = ONES.repeat(2, 1, 1, 1), torch.tensor([1, 0])
    curves = [
        probability_curve(Adds(), images[part], maps[part], classes[part], [0, 1, 4], inserts=False)
        for part in (slice(2), slice(1), slice(1, 2))
    ]
    assert_close(curves[0], torch.cat(curves[1:]))


def test_equal_patches_are_ranked_in_reading_order():
    found = ranks(torch.tensor([[[1.0, 2.0], [2.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]]))
    assert found.tolist() == [[2, 0, 1, 3], [0, 1, 2, 3]]


def test_area_is_the_mean_height_of_a_curve():
    curves = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]])
    assert_close(area(curves, [0, 2, 4]), torch.tensor([0.5, 1.0]))
    assert_close(area(curves, [0, 1, 4]), torch.tensor([0.375, 1.0]))  # 0.75 / 4 + 0.25 * 3 / 4


def test_the_centre_map_is_highest_in_the_middle_and_symmetric():
    middle = centre_map((3, 5))
    assert middle.flatten().argmax() == 7
    assert_close(middle, middle.flip(0))
    assert_close(middle, middle.flip(1))
    assert_close(centre_map((5, 3)), middle.mT)


@pytest.mark.parametrize("num_patches", [1, 4, 15, 16, 64, 196])
def test_counts_increase_from_none_to_all_patches(num_patches):
    counts = removal_counts(num_patches)
    assert (counts[0], counts[-1]) == (0, num_patches)
    assert len(counts) == min(17, num_patches + 1)
    assert all(a < b for a, b in itertools.pairwise(counts))


def test_parts_lose_their_weights_from_the_head_downwards_and_stay_so():
    model, fresh = build(pool="cls"), build(pool="cls")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1)
    initial, trained = fresh.state_dict(), {}
    for part, changed in randomised_cascade(model, fresh):
        names = [name for name, w in changed.state_dict().items() if not w.equal(initial[name])]
        trained[part] = {re.match(r"blocks\.\d|\w+", name)[0] for name in names}
    rest = {"cls_token", "patch_embed", "pos_embed"}
    assert trained == {
        "head": {"blocks.0", "blocks.1", *rest},
        "block 2": {"blocks.0", *rest},
        "block 1": rest,
        "embedding": set(),
    }
    assert list(trained) == list(cascade_parts(2))


def test_the_correlation_is_spearmans_with_ties():
    draws = torch.Generator().manual_seed(0)
    one, other = (torch.randint(0, 6, (5, 3, 4), generator=draws).float() for _ in range(2))
    pairs = zip(one.flatten(1), other.flatten(1), strict=True)
    expected = [stats.spearmanr(*pair).statistic for pair in pairs]
    assert rank_correlation(one, other).tolist() == pytest.approx(expected)


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
