"""The data set ``shapes``: paired classes differ in arrangement only."""

from vitcli.core.generated.shapes import CLASS_NAMES, CLASSES, PAIRS


def test_paired_classes_have_the_same_parts_in_another_order():
    assert len(PAIRS) == 5
    assert len(set(CLASS_NAMES)) == 10
    for one, other in PAIRS:
        assert CLASSES[one] == CLASSES[other][::-1]
        assert CLASSES[one] != CLASSES[other]
