"""Judge: captum. Its FeatureAblation decides the curves of deletion and insertion.

The attribution of a group of pixels is the answer for the picture minus the answer with the group
at its baseline. So the answer without the k highest patches is the answer minus the attribution of
these patches, and the answer with nothing else is the answer minus that of the other patches.
"""

from typing import Any

import pytest
import torch

from tests.judges.conftest import Judge
from vitcli.core.inspect.grad_cam import grad_cam

JUDGE = Judge("captum", "BSD-3-Clause", "deletion and insertion", "captum")
pytestmark = [pytest.mark.judge, pytest.mark.usefixtures("here")]


@pytest.mark.parametrize("inserts", [False, True], ids=["deletion", "insertion"])
def test_curves_of_the_bundled_model_are_those_of_captum(agree, inserts):
    for plugin in ("explain.subject", "faithfulness.faithfulness"):
        pytest.importorskip(f"vitcli.plugins.{plugin}")
    from tests.plugins.explain.made_up import bundled
    from vitcli.plugins.faithfulness.faithfulness import (
        area,
        enlarge,
        probability_curve,
        ranks,
        removal_counts,
    )

    subject = bundled()
    model, images = subject.model, subject.batch
    maps = grad_cam(model, images)
    classes, counts = model(images).argmax(1), removal_counts(model.num_patches)
    ours = probability_curve(model, images, maps, classes, counts, inserts=inserts)

    def theirs() -> Any:
        from captum.attr import FeatureAblation

        def answer(pixels: torch.Tensor) -> torch.Tensor:
            return model(pixels).softmax(-1)[:, classes[0]]

        rank, found = ranks(maps).view_as(maps), []
        for count in counts:
            goes = rank < count if not inserts else rank >= count
            group = enlarge(goes.float(), images).long().expand_as(images)
            change = FeatureAblation(answer).attribute(images, feature_mask=group)
            lost = change[group == 1]
            found.append(answer(images)[0] - (lost[0] if len(lost) else 0))
        return torch.stack(found).detach()

    agree(f"{'insertion' if inserts else 'deletion'}: {len(counts)} points", ours.detach(), theirs)
    assert 0 < area(ours, counts) < 1
