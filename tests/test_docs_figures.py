"""The figure of docs/ with the differences of several studies is legible."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.figure_checks import faults
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "results" / "study-pretraining.json"


def rows(seeds: int, missing: str = ""):
    """Return the rows of the committed study, with its first seeds only."""
    document = json.loads(STUDY.read_text())
    for row in document["rows"]:
        row["trials"] = [] if row["variant"] == missing else row["trials"][:seeds]
    return compare(read_document(json.dumps(document)))


@pytest.mark.parametrize(("seeds", "missing"), [(3, ""), (1, ""), (1, "clip")])
def test_the_figure_is_legible(monkeypatch, seeds, missing):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    from figures import differences

    found = {100: rows(seeds, missing), 1000: rows(3), 50000: rows(seeds)}
    draw = partial(differences, found, "labelled images", "Pre-training")
    assert faults(draw) == []
    (axes,) = draw().axes
    assert sorted(text.get_text() for text in axes.texts) == sorted(
        ["mae", "dino", "lejepa", "ssat", "clip"]
    )
    assert len(axes.collections) == sum(5 for n in (seeds, 3, seeds) if n == 3)
