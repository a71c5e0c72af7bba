"""Losses of tiny trainings are those that are committed, on any processor."""

import json
import math

import pytest

from tests.reference.losses import FILE, LOOSE, TOLERANCE, cases, losses

COMMITTED = json.loads(FILE.read_text())
KNOWN = cases()


def distance(name: str) -> float:
    """Return the largest relative difference between the committed losses and those of today."""
    pairs = zip(COMMITTED[name], losses(KNOWN[name]), strict=True)
    return max(abs(today - then) / then for then, today in pairs)


def test_each_case_is_committed():
    """After a new row of a table: ``python -m tests.reference.losses``."""
    assert [*COMMITTED] == [*KNOWN]
    assert all(math.isfinite(loss) for values in COMMITTED.values() for loss in values)


@pytest.mark.parametrize("name", KNOWN)
def test_the_losses_are_those_that_are_committed(name):
    assert distance(name) < LOOSE.get(name, TOLERANCE), (
        "the numbers of trainings have changed; if that is meant, type python -m"
        " tests.reference.losses, and say so in CHANGELOG.md"
    )


def test_a_change_of_the_numbers_is_seen(monkeypatch):
    """Not only seen: ten times the tolerance, so that the tolerance could be too small."""
    monkeypatch.setitem(KNOWN, "optimizer adamw", {"optim": {"betas": (0.9, 0.99)}})
    assert distance("optimizer adamw") > 10 * TOLERANCE
