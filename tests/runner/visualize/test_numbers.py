"""Verdicts, intervals and rankings of visualize, from numbers made by hand."""

import pytest
import torch

from vitcli.runner.visualize.attention_numbers import AttentionNumbers
from vitcli.runner.visualize.claims import judge_claims
from vitcli.runner.visualize.faithfulness_numbers import Faithfulness, MethodCurves
from vitcli.runner.visualize.statistics import mean_and_error

SPREAD = torch.tensor([-0.1, 0.0, 0.1])[:, None, None]


def numbers(far=(4.0, 6.0, 9.5), entropy=3.8, to_patches=0.9, images=3) -> AttentionNumbers:
    """Return numbers of three layers with one head. Uniform attention has a distance of 10."""
    distance = (torch.tensor(far)[None, :, None] + SPREAD)[:images]
    like = torch.ones_like(distance)
    return AttentionNumbers(
        distance=distance,
        near=0.25 * like,
        entropy=like,
        cls_entropy=entropy * like,
        cls_to_patches=to_patches * like,
        similarity=torch.full((3,), torch.nan),
        uniform=10.0,
        uniform_near=0.12,
        num_patches=64,
        num_tokens=65,
    )


def verdicts(**changes) -> list[str]:
    return [claim.verdict for claim in judge_claims(numbers(**changes))]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["holds", "holds", "holds", "holds"]),
        ({"far": (9.5, 6.0, 4.0)}, ["does not hold", "does not hold", "does not hold", "holds"]),
        ({"far": (7.0, 7.0, 7.0)}, ["in part", "undecided", "in part", "holds"]),
        ({"images": 1}, ["holds", "undecided", "holds", "holds"]),
        ({"entropy": 3.0}, ["holds", "holds", "holds", "in part"]),  # 20 of 64 patches
        ({"entropy": 1.0}, ["holds", "holds", "holds", "does not hold"]),
        ({"to_patches": 0.2}, ["holds", "holds", "holds", "does not hold"]),
    ],
    ids=str,
)
def test_a_claim_is_judged_by_what_was_measured(changes, expected):
    assert verdicts(**changes) == expected


def test_the_interval_is_that_of_students_t():
    mean, error = mean_and_error(torch.tensor([1.0, 2.0, 3.0]))
    assert mean == 2
    assert error == pytest.approx(4.302653 / 3**0.5)  # two degrees of freedom, sd 1
    assert mean_and_error(torch.tensor([5.0])) == (5.0, None)


def test_the_best_method_is_a_real_one_with_the_largest_gain():
    def curves(name: str, deletion: float, insertion: float) -> MethodCurves:
        flat = torch.zeros(2, 2)
        areas = torch.tensor([deletion, deletion]), torch.tensor([insertion, insertion])
        return MethodCurves(
            method=name,
            deletion=flat,
            insertion=flat,
            deletion_area=areas[0],
            insertion_area=areas[1],
        )

    rows = (curves("rollout", 0.3, 0.5), curves("gradcam", 0.2, 0.7), curves("centre", 0.0, 1.0))
    found = Faithfulness(shares=(0.0, 1.0), methods=rows)
    assert [each.method for each in found.ranking] == ["gradcam", "rollout"]
    assert found.best.gap.tolist() == pytest.approx([0.5, 0.5])
