"""A factorial study from its file to its tables and figure."""

import pytest

from tests.fabricated_study import make_reference, make_study
from vitcli.runner.errors import ConfigError
from vitcli.runner.study.definition import load_study
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


def write(here, text: str) -> str:
    (here / "mine.yaml").write_text(text)
    return "mine.yaml"


def test_every_combination_is_a_variant(here):
    study = load_study(write(here, STUDY))
    assert study.parts == ("no-norm", "one-head")
    assert [each.name for each in study.variants] == list(SCORES)
    both = study.variants[-1].spec.model
    assert (both.norm, both.num_heads) == ("none", 1)
    assert len(study.trials()) == 8


def test_single_cells_are_the_trials_of_a_study_of_one_part_at_a_time(here):
    crossed = load_study(write(here, STUDY))
    plain = load_study(write(here, STUDY.replace("design: factorial\n", "")))
    assert [each.spec for each in plain.variants] == [each.spec for each in crossed.variants[:3]]
    assert plain.parts == ()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("  one-head: {model.num_heads: 1}\n", "", "a baseline and 2 to 7 variants, not 1"),
        ("one-head:", "one+head:", r"\+ joins names"),
        ("model.num_heads: 1", "experiment: cifar10-tiny", "another experiment cannot be crossed"),
        ("model.num_heads: 1", "model.norm: rms", "changes model.norm, and so does 'no-norm'"),
        ("seeds:", "data: {val_split: 100}\ntune: {optim.lr: [0.1]}\nseeds:", "cannot tune"),
        ("factorial", "fractional", "design"),
    ],
)
def test_what_cannot_be_crossed_is_refused(here, old, new, problem):
    with pytest.raises(ConfigError, match=problem):
        load_study(write(here, STUDY.replace(old, new)))


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
    text = render(doc, "text")
    assert "no-norm x one-head" in text
    assert "No test" not in text
    assert read_document(render(doc, "json")) == doc


def test_a_diverged_cell_counts_as_chance_and_is_also_left_out():
    doc = made(one_head=["diverged", 0.9])
    assert chance_score(doc) == 10
    assert cell_scores(doc)[frozenset({"one-head"})] == {0: 10, 1: 90}
    table = build_effects(doc)
    assert table.columns[-1].header == "without diverged cells"
    assert "counted as chance (10 %)" in " ".join(table.notes)
    assert table.rows[0][-1] == "not known"  # three of four cells cannot tell effects apart


def test_cells_are_not_compared_with_a_source():
    doc = made().replace(reference=make_reference(dict.fromkeys(SCORES, 90.0)))
    text = render(doc, "text")
    assert "source" not in text.lower()
    assert "verdict" not in text.lower()


def test_effects_wait_for_a_second_seed():
    one = make_study({name: row[:1] for name, row in SCORES.items()}, parts=("no-norm", "one-head"))
    assert build_effects(one).rows == ()
    assert "needs two seeds" in build_effects(one).notes[0]
    text = render(one, "text")
    assert "No effect can be estimated yet: it needs two seeds in the cells." in text
    assert "main effects and interactions" not in text, "no table without a row"


@pytest.mark.parametrize("rows", [SCORES, {name: ["missing"] * 2 for name in SCORES}])
def test_a_report_has_the_figure_of_the_effects(tmp_path, rows):
    doc = make_study(rows, parts=("no-norm", "one-head"), data="cifar10")
    paths = {path.name for path in write_report(doc, tmp_path)}
    assert {"effects.png", "effects.svg", "curves.png", "report.html"} <= paths
    assert "forest.png" not in paths
    assert "Main effects on the diagonal" in (tmp_path / "report.html").read_text()
