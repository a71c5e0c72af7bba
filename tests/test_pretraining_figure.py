"""The table, the sentences and the figure of docs/pretraining.md, for results that are complete,
from one seed only, or not finished."""

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from tests.figure_checks import faults
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "results" / "study-pretraining.json"


@pytest.fixture
def tables(monkeypatch, tmp_path) -> Iterator[ModuleType]:
    """Return the module, which reads results from an empty folder."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import pretraining_tables

    monkeypatch.setattr(pretraining_tables, "RESULTS", tmp_path)
    yield pretraining_tables
    for name in ("pretraining_tables", "pretraining_figure"):
        sys.modules.pop(name, None)


def write(folder: Path, name: str, seeds: int, missing: str = "") -> StudyResult:
    """Write the committed result as that of study ``name``, with the first seeds only."""
    document = json.loads(STUDY.read_text())
    for row in document["rows"]:
        row["trials"] = [] if row["variant"] == missing else row["trials"][:seeds]
    text = json.dumps(document | {"name": name})
    (folder / f"{name}.json").write_text(text)
    return read_document(text)


def test_a_single_study_has_no_figure(tables, tmp_path):
    write(tmp_path, "study-pretraining", 3)
    assert tables.FIGURE not in tables.pretraining()
    tables.draw()
    assert not (tmp_path / tables.FIGURE).exists()


def test_several_studies_have_a_figure_and_the_page_shows_it(tables, tmp_path):
    write(tmp_path, "study-pretraining", 3)
    write(tmp_path, "study-pretraining-all", 1)
    assert f"](../experiments/results/{tables.FIGURE})" in tables.pretraining()
    tables.draw()
    assert (tmp_path / tables.FIGURE).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("seeds", "missing"), [(3, ""), (1, ""), (1, "clip"), (3, "scratch")])
def test_the_figure_is_legible(tables, tmp_path, seeds, missing):
    from pretraining_figure import figure

    docs = {
        100: write(tmp_path, "study-pretraining-100", seeds, missing),
        1000: write(tmp_path, "study-pretraining", 3),
        50000: write(tmp_path, "study-pretraining-all", seeds),
    }
    assert faults(partial(figure, docs)) == []
    above, below = figure(docs).axes
    for axes in (above, below):
        texts = [text.get_text() for text in axes.texts]
        assert sorted(texts) == sorted(["scratch", "mae", "dino", "lejepa", "ssat", "clip"])
    num_trials = sum(len(row.trials) for doc in docs.values() for row in doc.rows)
    dots = [line for line in above.lines if line.get_linestyle() == "None"]
    assert sum(len(line.get_xdata()) for line in dots) == num_trials
    with_interval = sum(5 for n in (seeds, 3, seeds) if n == 3) - 5 * (missing == "scratch")
    assert len(below.collections) == with_interval


@pytest.mark.parametrize("seeds", [3, 1])
def test_the_sentences_are_those_of_the_study(tables, tmp_path, seeds):
    doc = write(tmp_path, "study-pretraining", seeds)
    rows = compare(doc)
    shown = tables.pretraining()
    assert f"- With 1,000 labels (n = {seeds} seed{'s' * (seeds > 1)}): " in shown
    for said in tables.study_sentences(rows, same_setting=False):
        assert said in shown
