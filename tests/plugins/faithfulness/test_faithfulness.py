"""Curves, ranks and verdicts about maps equal results by hand; the figure fits any model."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from tests.cli.commands import said
from tests.cli.conftest import CLS
from tests.core.specs import build
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.plugins.faithfulness.faithfulness import (
    area,
    cascade_parts,
    centre_map,
    probability_curve,
    randomised_cascade,
    rank_correlation,
    ranks,
    removal_counts,
)
from vitcli.plugins.faithfulness.figure import CLEARLY, HARDLY, OPEN, check_randomisation


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


def checked(gaps=None, depth=4, **halfway: float) -> Mapping[str, Any]:
    """Return a check of four draws whose correlations halfway vary by 0.01 around given numbers."""
    draws = torch.tensor([-0.01, 0.0, 0.0, 0.01])[:, None, None]
    correlations = {
        name.replace("_", "-"): (draws + value).expand(4, 3, depth + 2).double()
        for name, value in halfway.items()
    }
    seeds = [1, 2, 3, 4]
    return check_randomisation(correlations, seeds, gaps or dict.fromkeys(correlations, 0.0))


def test_a_verdict_on_randomised_weights_follows_from_the_interval():
    found = checked(rollout=0.95, grad_rollout=0.62, wavering=0.91)
    half = 3.182446 * torch.tensor([-0.01, 0, 0, 0.01]).std().item() / 2  # three degrees of freedom
    assert found["methods"][0]["correlation"][found["halfway"]] == pytest.approx((0.95, half))
    assert [row["verdict"] for row in found["methods"]] == [HARDLY, CLEARLY, OPEN]


def test_the_chosen_map_depends_on_the_upper_layers_and_is_the_best_of_those():
    maps = {"rollout": 0.95, "grad_rollout": 0.62, "gradcam": 0.0}
    gaps = {"rollout": 0.5, "grad-rollout": 0.3, "gradcam": 0.1}
    assert checked(gaps, **maps)["choice"] == "grad-rollout"
    assert checked(gaps | {"gradcam": 0.4}, **maps)["choice"] == "gradcam"
    assert checked(gaps, rollout=0.95)["choice"] is None


@pytest.mark.parametrize("row", ATTENTIONS)
def test_every_attention_and_a_grid_of_one_patch_have_the_figure_or_none(copy_of_run, here, row):
    changes = CLS | {"train.epochs": 0, "model.attention": row}
    for size in ({}, {"model.patch_size": 8}) if row == "softmax" else ({},):
        run = copy_of_run(here / f"run{len(size)}", changes | size)
        said(0, "visualize", run, "--what", "faithfulness", "--num-images", 4)
