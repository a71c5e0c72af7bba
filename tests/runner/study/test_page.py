"""The page and figures of a study: complete, inert, and always the same bytes."""

import re
from functools import partial

import numpy as np
import pytest

from tests.fabricated_study import HOSTILE, make_hostile_study, make_reference, make_row, make_study
from tests.figure_checks import faults
from tests.runner.study.tables import ROWS, Page
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.study.figures import BLUE, FIGURES, VERMILION, curve, figures_of, forest
from vitcli.runner.study.images import ImageScores, contrast
from vitcli.runner.study.page import html, publish
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare


@pytest.mark.parametrize("data", ["shapes", "cifar10"])
def test_a_page_shows_what_the_classes_lose(data):
    doc = make_study({"base": [0.9, 0.8], "less": [0.8, 0.7]}, data=data)
    labels = np.arange(10)
    base = ImageScores(dict.fromkeys((0, 1), np.full(10, 100.0)), labels)
    less = ImageScores(dict.fromkeys((0, 1), 10.0 * labels), labels)
    row = doc.rows[1].replace(contrast=contrast(less, base, ACCURACY))
    rows = Page(html(doc.replace(rows=(doc.rows[0], row)), {})).rows
    names = ["airplane", "automobile", "bird"] if data == "cifar10" else ["class 0", "class 1"]
    head = next(i for i, row in enumerate(rows) if names[0] in row)
    start = rows[head].index(names[0])
    assert rows[head][start : start + len(names)] == names
    assert rows[head + 1][start : start + 2] == ["\u2212100.0", "\u221290.0"]


def test_hostile_names_leave_the_page_inert():
    text = html(make_hostile_study(), {})
    seen = Page(text)
    policies = [value for tag, name, value in seen.attributes if name == "content"]
    assert any("default-src 'none'" in policy and "script" not in policy for policy in policies)
    for tag, name, value in seen.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("href", "action", "srcdoc", "style")
        assert name != "src" or value.startswith("data:image/svg+xml;base64,")
    assert "<script>alert('1')</script>" in seen.text, "shown as text"
    assert all(" ".join(name.split()) in " ".join(seen.text.split()) for name in HOSTILE[:4])
    assert not re.search(r"https?://", text.partition("</style>")[0])


def test_publishing_twice_writes_the_files_once(tmp_path):
    doc = make_study({"base": [0.9, 0.8], "less": [0.8, 0.7]})
    first = publish(doc, tmp_path)
    content = {path: path.read_bytes() for path in first}
    names = {"report.html", "results.json", "table.tex", "forest.svg", "curves.png"}
    assert {path.name for path in first} >= names
    written = {path: path.stat().st_mtime_ns for path in first}
    assert {*publish(doc, tmp_path)} == {*first}
    assert {path: path.stat().st_mtime_ns for path in first} == written
    (tmp_path / "results.json").unlink()
    assert publish(doc, tmp_path) == first
    assert {path: path.read_bytes() for path in first} == content


CROSSED: dict[str, list[float | str]] = {
    "full": [0.90, 0.92],
    "no-norm": [0.80, 0.83],
    "no-ffn": [0.88, 0.90],
    "no-norm+no-ffn": [0.60, 0.62],
}


def points(doc: StudyResult, colour: str) -> list[list[float]]:
    """Return the x values of each line of this colour in the forest plot."""
    lines = forest(doc).axes[0].get_lines()
    return [np.asarray(line.get_xdata()).tolist() for line in lines if line.get_color() == colour]


def test_the_forest_plot_shows_pairs_means_intervals_and_the_source():
    doc = make_study(ROWS, reference=make_reference({"baseline": 93.1, "no-ffn": 86.7}))
    found = compare(doc)[1]
    assert points(doc, BLUE)[:2] == [[found.difference], [found.ci_low, found.ci_high]]
    assert len(points(doc, BLUE)) == 4, "two rows have a mean of one or two pairs and no interval"
    assert points(doc, VERMILION) == [[-6.4]]
    lines = forest(doc).axes[0].get_lines()
    pairs = [line.get_xdata() for line in lines if line.get_marker() == "o"]
    np.testing.assert_allclose(pairs[0], [-6.4, -6.6, -6.2])
    assert [len(p) for p in pairs] == [3, 2, 1, 0, 0]


def test_curves_are_means_of_finished_seeds_over_common_epochs():
    row = make_row("a", [0.6, 0.9, "diverged"])
    epochs, values = curve(row, 100)
    assert list(epochs) == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(values[:, -1], [60, 90])
    short = row.trials[0].changed(curve=((2, 0.5), (4, 0.6)))
    epochs, values = curve(row.replace(trials=(short, *row.trials[1:])), 100)
    assert list(epochs) == [2, 4]
    assert values.shape == (2, 2)
    assert curve(make_row("a", ["diverged"]), 100)[0].size == 0


LEGIBLE = {
    "hostile": make_hostile_study(),
    "nothing finished": make_study({"baseline": ["missing"], "less": ["diverged"]}),
    "no rows": make_study({}),
    "many": make_study({f"variant-{i}": [0.5 + i / 100, 0.5] for i in range(30)}),
    "crossed": make_study(CROSSED, parts=("no-norm", "no-ffn")),
    "long names": make_study(
        {
            f"{i}-northern-flying-squirrel-with-acorn-and-\u00dcbergr\u00f6\u00dfe": [0.5, 0.6, 0.7]
            for i in range(8)
        },
        name="northern_flying_squirrel_with_acorn_and_more",
    ),
}


@pytest.mark.parametrize(
    ("figure", "name"),
    [(figure, name) for name, doc in LEGIBLE.items() for figure in figures_of(doc)],
)
def test_nothing_is_cut_off_or_covered_and_everything_has_a_label(name, figure):
    assert faults(partial(FIGURES[figure], LEGIBLE[name])) == []
