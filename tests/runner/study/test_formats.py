"""The table, page and figures of a study: what they say, well formed and inert."""

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings

from tests.fabricated_study import (
    HOSTILE,
    cell,
    cells,
    make_hostile_study,
    make_reference,
    make_row,
    make_study,
    studies,
)
from tests.figure_checks import faults
from tests.patience import HANG
from vitcli.core.metric import ACCURACY
from vitcli.runner.report.tables import LATEX, read_csv, to_csv
from vitcli.runner.study.figures import BLUE, VERMILION, curve, curves, figures_of, forest
from vitcli.runner.study.images import ImageScores, contrast
from vitcli.runner.study.page import html, publish
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import FORMATS, build, read_document, render

ROWS: dict[str, list[float | str]] = {
    "baseline": [0.931, 0.934, 0.928],
    "no-ffn": [0.867, 0.868, 0.866],
    "no-residual": [0.8, "diverged", 0.81],
    "single-head": [0.93, "missing", "missing"],
    "no-layernorm": ["diverged", "diverged", "diverged"],
    "wide": ["failed", "running", "running"],
}
SOURCE = {"baseline": 93.1, "no-ffn": 86.7, "no-residual": 81.0, "single-head": 89.9}
VOID = {"meta", "img", "br", "link"}
ALLOWED = (
    "html head meta title style body main h1 h2 p pre div table caption thead tbody tr th td ol li"
    " figure img figcaption dl dt dd code"
)

DOC, HOSTILE_DOC = make_study(ROWS, reference=make_reference(SOURCE)), make_hostile_study()
DIFFERENCE = "difference [95 % CI]"


class Page(HTMLParser):
    """Attributes, cells and text of a page, whose tags must be allowed and balance."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED.split(), tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def test_incomplete_rows_name_their_open_trials_and_the_number_of_pairs():
    assert cell(DOC, "wide", "not finished") == "1 of 3 failed, 2 running"
    assert cell(DOC, "wide", "accuracy, %") == "no result yet"
    assert cell(DOC, "no-residual", "diverged") == "1 of 3"
    assert cell(DOC, "no-layernorm", "accuracy, %") == "diverged"
    mixed = make_study({"base": ["diverged", "diverged", "missing"]})
    assert cell(mixed, "base", "accuracy, %") == "no result yet"
    assert cell(DOC, "single-head", DIFFERENCE) == "\u22120.10 (1 pair)"
    rows = {"base": [0.9, "failed", 0.9, 0.9], "less": [0.8] * 4, "none": ["failed", 0.8, "stale"]}
    shown = ["baseline", "\u221210.00 (3 pairs)", "no pair"]
    assert [row[DIFFERENCE] for row in cells(make_study(rows))] == shown


def test_a_note_counts_a_shared_pre_training_once():
    shared = {"train_flops": 2e14, "pretrain_flops": 1e14, "pretrain_seconds": 1800.0}
    trials = [
        t.changed(result={**t.result, "train_seconds": 1800.0, **shared})
        for t in DOC.rows[0].trials
    ]
    base = DOC.rows[0].replace(trials=tuple(trials))
    doc = DOC.replace(rows=(base, base.replace(variant="less, more")), threads=2)
    text = "\n".join(build(doc).notes)
    assert "6 trainings, 1.5 PFLOP, 9 core hours" in text
    assert "vitcli ablate made-up --only 'less, more' --seeds 0" in text


OTHER_KERNELS = [
    ({}, {"model.depth": 2}, [(), ()], ""),
    ({}, {"model.attention": {"name": "Mine", "power": 2}}, [(), ()], "of b has no"),
    ({"model.attention": "linear"}, {"model.family": "swin"}, [(), ()], "of a has no"),
    ({}, {"model.norm": "none"}, [("native",), ("torch",)], "torch kernels trained b"),
]


@pytest.mark.parametrize(("base", "changes", "kernels", "told"), OTHER_KERNELS)
def test_a_note_names_the_rows_that_have_other_kernels(base, changes, kernels, told):
    rows = [
        make_row(name, [0.5], changes=changed, kernels=used)
        for name, changed, used in zip("ab", ({}, changes), kernels, strict=True)
    ]
    doc = make_study({}, rows=tuple(rows), base_config=base, num_comparisons=1)
    notes = "\n".join(build(doc).notes)
    assert ("Kernels: " in notes) == bool(told)
    assert told in notes
    assert read_document(render(doc, "json")) == doc


def test_csv_has_no_cell_that_a_spreadsheet_computes_and_is_read_as_it_was():
    formulas = ["=cmd|' /C calc'!A0", "+a", "-a.png", "@SUM(1)", "'=a", "''@a", "\t=a", "=", "'"]
    cells = ["name", *formulas, "-0.5", "'-5", "+1e-3", "a=b", "-"]
    text = to_csv([cells, ["x", *[-1.5] * (len(cells) - 1)]])
    written, numbers = csv.reader(io.StringIO(text))
    assert not [cell for cell in written if re.match(r"[=+\-@\t\r][^\d]", cell)]
    assert {*numbers[1:]} == {"-1.5"}
    (_, found), _ = read_csv(text, "x.csv")
    assert found == cells


def test_csv_and_json_hold_the_statistics():
    rows = list(csv.DictReader(io.StringIO(render(DOC, "csv"))))
    stored = json.loads(render(DOC, "json"))["statistics"]
    assert [row["variant"] for row in rows] == [row["variant"] for row in stored] == list(ROWS)
    for row, other, found in zip(rows, stored, compare(DOC), strict=True):
        for name in ("score_mean", "score_sd", "difference", "ci_low", "ci_high", "p_holm"):
            value = getattr(found, name)
            name = name.replace("score", "accuracy")
            assert row[name] == ("" if value is None else str(round(value, 6)))
            assert other[name] == (None if value is None else round(value, 6))
        assert int(row["n"]) == found.n
        assert (row["effect"], other["effect"]) == (found.effect or "", found.effect)
    assert (rows[0]["seeds_missing"], rows[0]["parameters"]) == ("", "305002")


def test_markdown_rows_have_equal_columns_and_readable_names():
    for each in (DOC, HOSTILE_DOC):
        lines = [line for line in render(each, "md").splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert bars == {len(build(each).columns) + 1}
        assert len(lines) == len(each.rows) + 2
    names = {"no_ffn": "no_ffn", "_x_ <b>": r"\_x\_ \<b\>", "[a](b)": r"[a\](b)"}
    text = render(make_study({name: [0.5] for name in names}, question=""), "md")
    assert all(f"| {name} |" in text for name in names.values())


def test_latex_escapes_special_characters_and_starts_of_rows():
    doc = make_study({"%_&#$~^\\{}<>|---": [0.5]})
    spelled = "".join(LATEX[c] for c in "%_&#$~^\\{}<>|") + "-{}-{}-"
    assert f"\n{spelled} & 305,002 &" in render(doc, "latex")
    # LaTeX takes a bracket or star after a row end as its argument, even on the next line.
    lines = render(HOSTILE_DOC, "latex").splitlines()
    assert [line for line in lines if line.startswith(("[", "*"))] == []
    named = render(make_study({"Søren Ünï Łąđ ≥": [0.5]}), "latex")
    assert f"\nSøren Ünï Ład {LATEX[chr(92)]}u2265 &" in named


def test_a_caption_replaces_the_question_in_every_format_that_has_one():
    for form in ("text", "md", "html", "latex"):
        text = render(DOC, form, caption="My rows")
        assert ("My rows" in text, "what does each part" in text) == (True, False), form
    assert render(DOC, "csv", caption="My rows") == render(DOC, "csv")


def test_a_latex_float_has_the_question_and_a_short_legend():
    text = render(DOC.replace(hypothesis="none matters"), "latex")
    inside, _, below = text.partition("\\end{table}")
    assert "\\caption{What does each part contribute?}" in inside
    assert "\\caption{Accuracy by variant.}" in render(DOC.replace(question=""), "latex")
    assert "none matters" in below.partition("% n: ")[0]
    legend = inside.partition("\\raggedright\n")[2]
    assert "seeds. Brackets: 95" in legend
    assert len(legend) < 130  # two lines of a column
    assert "\\shortstack[r]{accuracy, \\%}" in inside  # no sign of percent on a line of its own


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("kind", ["{article}", "[twocolumn]{article}"])
def test_latex_compiles(tmp_path, kind):
    letters = make_study({"".join(map(chr, range(0xA0, 0x250))) + "ﬁß中é≤": [0.5]})
    body = "\n\n".join(render(each, "latex") for each in (DOC, HOSTILE_DOC, letters))
    packages = "\\usepackage{booktabs,graphicx}"
    page = f"\\documentclass{kind}{packages}\\begin{{document}}\n{body}\n\\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=HANG)
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")
    assert b"Overfull" not in done.stdout


@settings(max_examples=12, deadline=None)
@given(studies())
def test_every_mix_renders_in_every_format(doc):
    again = read_document(render(doc, "json"))
    assert again == doc
    for form in FORMATS:
        text = render(doc, form)
        assert text == render(again, form) == text.rstrip("\n") != ""
    Page(render(doc, "html"))
    for row, own, found in zip(cells(doc), doc.rows, compare(doc), strict=True):
        assert row["n"] == str(found.n)
        if found.num_unfinished:
            assert f"of {len(own.trials)} " in row["not finished"]


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
    text = html(HOSTILE_DOC, {})
    seen = Page(text)
    policies = [value for tag, name, value in seen.attributes if name == "content"]
    assert any("default-src 'none'" in policy and "script" not in policy for policy in policies)
    for tag, name, value in seen.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name not in ("href", "action", "srcdoc", "style")
        assert name != "src" or value.startswith("data:image/svg+xml;base64,")
    assert {value for _, name, value in seen.attributes if name == "scope"} == {"col", "row"}
    assert "<script>alert('1')</script>" in seen.text, "shown as text"
    assert all(" ".join(name.split()) in " ".join(seen.text.split()) for name in HOSTILE[:4])
    assert not re.search(r"https?://", text.partition("</style>")[0])


def test_publishing_twice_writes_the_files_once(here):
    doc = make_study({"base": [0.9, 0.8], "less": [0.8, 0.7]})
    first = publish(doc, here)
    content = {path: path.read_bytes() for path in first}
    names = {"report.html", "results.json", "table.tex", "forest.svg", "curves.png"}
    assert {path.name for path in first} >= names
    written = {path: path.stat().st_mtime_ns for path in first}
    assert {*publish(doc, here)} == {*first}
    assert {path: path.stat().st_mtime_ns for path in first} == written
    (here / "results.json").unlink()
    assert publish(doc, here) == first
    assert {path: path.read_bytes() for path in first} == content


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


def test_the_curves_name_each_row_without_one():
    finished = make_row("flat", [0.5]).trials[0].changed(curve=())
    rows = (*make_study(ROWS).rows, make_row("flat", []).replace(trials=(finished,)))
    text = " ".join(curves(make_study(ROWS).replace(rows=rows)).get_supxlabel().split())
    assert text == "Without a curve: no-layernorm, wide, flat"
    assert curves(make_study({"a": [0.5]})).get_supxlabel() == ""


LONG = "northern-flying-squirrel-with-acorn-and-\u00dcbergr\u00f6\u00dfe"
LEGIBLE = {
    "hostile": HOSTILE_DOC,
    "nothing finished": make_study({"baseline": ["missing"], "less": ["diverged"]}),
    "no rows": make_study({}),
    "many": make_study({f"variant-{i}": [0.5 + i / 100, 0.5] for i in range(30)}),
    "long names": make_study({f"{i}-{LONG}": [0.5, 0.6, 0.7] for i in range(8)}, name=LONG),
}


SHOWN = [(figure, name) for name, doc in LEGIBLE.items() for figure in figures_of(doc)]


@pytest.mark.parametrize(("figure", "name"), SHOWN)
def test_nothing_is_cut_off_or_covered_and_everything_has_a_label(name, figure):
    assert faults(figures_of(LEGIBLE[name])[figure]) == []
