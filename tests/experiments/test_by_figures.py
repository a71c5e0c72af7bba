"""Verdicts that the numbers of figures decide, for made numbers of every kind."""

from typing import Any

import pytest

from experiments.claims.by_results import FROM_RESULTS
from experiments.claims.item import Word
from tests.experiments.test_by_studies import Made, study


class WithMaps(Made):
    """Results that a test made, with a difference of insertion and deletion for each map."""

    gaps: dict[str, float]

    def figures(self, name: str, what: str) -> dict[str, Any] | None:
        methods = [{"method": m, "gap": gap, "gap_ci95": 0.01} for m, gap in self.gaps.items()]
        return {"faithfulness": {"methods": methods, "n": 10}, "hardware": "a CPU"}


def explained(attention: float, *, gradients: float = 0.2, vits: float = 60.0) -> WithMaps:
    """Maps of attention with this difference, and ViTs beside a ResNet of 60 %."""
    doc = study("classification-cifar10-short", 60.0, vit_small=vits, vit_small_aug=vits)
    made = WithMaps(doc)
    made.gaps = {
        "last layer": 0.0, "rollout": attention, "grad-rollout": gradients, "gradcam": 0.0,
        "random": 0.0, "centre": 0.1,
    }  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("attention", "vits", "verdict"),
    [
        (0.15, 60.0, "holds"),
        (0.05, 60.0, "in part"),
        (0.15, 50.0, "in part"),
        (0.11, 50.0, "undecided"),
        (0.05, 50.0, "refuted"),
    ],
)
def test_maps_must_be_better_than_a_map_of_the_centre(attention, vits, verdict):
    assert FROM_RESULTS["S2-02"](explained(attention, vits=vits)).verdict == verdict


@pytest.mark.parametrize(
    ("attention", "vits", "verdict"),
    [(0.15, 58.5, "holds"), (0.05, 58.5, "in part"), (0.05, 70.0, "in part")],
)
def test_maps_that_explain_support_the_conclusion(attention, vits, verdict):
    assert FROM_RESULTS["S2-74"](explained(attention, vits=vits)).verdict == verdict


@pytest.mark.parametrize(
    ("gradients", "part"), [(0.2, "holds"), (0.05, "refuted"), (0.11, "undecided")]
)
def test_attention_does_not_always_explain_if_gradients_explain_more(gradients: float, part: Word):
    found = FROM_RESULTS["S2-68"](explained(0.1, gradients=gradients))
    assert f"explanation: {part}. " in found.found
