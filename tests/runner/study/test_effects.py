"""A factorial study from its file to its tables and figure."""

import pytest

from tests.fabricated_study import make_reference, make_study
from tests.runner.study.trials import write_study
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.effects import build_effects, cell_scores, chance_score
from vitcli.runner.study.page import write_report
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import build, read_document, render

STUDY = """
base: quickstart
seeds: [0, 1]
design: factorial
variants:
  full: {}
  no-norm: {model.norm: none}
  one-head: {model.num_heads: 1}
"""
SCORES = {
    "full": [0.90, 0.92],
    "no-norm": [0.80, 0.82],
    "one-head": [0.88, 0.90],
    "no-norm+one-head": [0.60, 0.62],
}


def made(**changes: list[float | str]) -> StudyResult:
    rows = SCORES | {name.replace("_", "-"): value for name, value in changes.items()}
    return make_study(rows, parts=("no-norm", "one-head"), data="cifar10")


def test_every_combination_is_a_variant(here):
    study = write_study(STUDY)
    assert study.parts == ("no-norm", "one-head")
    assert [each.name for each in study.variants] == list(SCORES)
    both = study.variants[-1].spec.model
    assert (both.norm, both.num_heads) == ("none", 1)
    assert len(study.trials()) == 8


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  one-head: {model.num_heads: 1}\n", "", "2 to 7 variants"),
        ("one-head:", "one+head:", r"\+ joins"),
        ("model.num_heads: 1", "experiment: cifar10-tiny", "cannot be crossed"),
        ("model.num_heads: 1", "model.norm: rms", "model.norm, and so does 'no-norm'"),
        ("seeds:", "data: {val_split: 100}\ntune: {optim.lr: [0.1]}\nseeds:", "cannot tune"),
        ("factorial", "fractional", "design"),
    ],
)
def test_what_cannot_be_crossed_is_refused(here, old, new, problem):
    with pytest.raises(ConfigError, match=problem):
        write_study(STUDY.replace(old, new))


def test_the_table_shows_cells_and_effects_by_hand():
    doc = made()
    assert {"difference [95 % CI]", "p (Holm)"}.isdisjoint(
        column.header for column in build(doc).columns
    )
    rows = build_effects(doc).rows
    # no-norm costs 10 alone and 28 with one head: -19, and an interaction of -18.
    assert rows[0][:2] == ("no-norm", "\u221219.00 [\u221219.00, \u221219.00]")
    assert rows[1][:2] == ("one-head", "\u221211.00 [\u221211.00, \u221211.00]")
    assert rows[2][:2] == ("no-norm x one-head", "\u221218.00 [\u221218.00, \u221218.00]")
    assert read_document(render(doc, "json")) == doc


def test_a_diverged_cell_counts_as_chance_and_is_also_left_out():
    doc = made(one_head=["diverged", 0.9])
    assert chance_score(doc) == 10
    assert cell_scores(doc)[frozenset({"one-head"})] == {0: 10, 1: 90}
    table = build_effects(doc)
    assert table.columns[-1].header == "without diverged cells"
    assert table.rows[0][-1] == "not known"  # three of four cells cannot tell effects apart


def test_cells_are_not_compared_with_a_source():
    doc = made().replace(reference=make_reference(dict.fromkeys(SCORES, 90.0)))
    text = render(doc, "text").lower()
    assert not [word for word in ("source", "verdict") if word in text]


def test_effects_wait_for_a_second_seed_and_have_a_figure(tmp_path):
    doc = made(**{name: row[:1] for name, row in SCORES.items()})
    assert build_effects(doc).rows == ()
    paths = {path.name for path in write_report(doc, tmp_path)}
    assert {"effects.png", "effects.svg", "curves.png", "report.html"} <= paths
    assert "forest.png" not in paths
