"""The data set ``scenes``: paired classes have equal parts, and equal sums of rows and columns."""

import pytest
import torch

from vitcli.core.generated.scenes import CLASS_NAMES, CLASSES, PAIRS

STEPS = torch.arange(-16, 16, 0.1, dtype=torch.float64) + 0.05
X, Y = STEPS[None, :], STEPS[:, None]


def distances(name):
    """Return the distance of each point of a fine grid from each part of a class."""
    return [part.distance(X - x, Y - y) for part, (x, y) in CLASSES[name]]


def test_paired_classes_have_the_same_parts_in_other_places():
    assert len(PAIRS) == 5
    assert len(set(CLASS_NAMES)) == 10
    for one, other in PAIRS:
        assert [part for part, _ in CLASSES[one]] == [part for part, _ in CLASSES[other]]
        assert CLASSES[one] != CLASSES[other]


@pytest.mark.parametrize("axis", [0, 1], ids=["columns", "rows"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_paired_classes_have_equal_sums_of_rows_and_of_columns(pair, axis):
    one, other = (sum((d < 0).double() for d in distances(name)).sum(axis) for name in pair)
    assert one.sum() > 3000
    assert (one - other).abs().max() <= 1, "a profile of the image shows the class"
