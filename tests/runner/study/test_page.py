"""The page and the checklist of a study: complete, inert, and always the same bytes."""

import re

import numpy as np
import pytest

from tests.fabricated_study import (
    HOSTILE,
    make_hostile_study,
    make_reference,
    make_row,
    make_study,
)
from tests.runner.study.tables import Page
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.study.checklist import ITEMS, TO_DO, checklist
from vitcli.runner.study.images import ImageScores, contrast
from vitcli.runner.study.page import html
from vitcli.runner.study.publish import publish
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import build


def words(doc: StudyResult) -> str:
    return " ".join(Page(html(doc, {})).text.split())


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


def test_the_page_shows_the_results():
    rows = (
        make_row("baseline", [0.931, 0.934]),
        make_row("no-ffn", [0.867, "diverged"], changes={"model.ffn": "none"}),
        make_row("slow", ["failed", "missing"], changes={"experiment": "other"}),
    )
    doc = make_study({}, rows=rows, reference=make_reference({"no-ffn": 86.7}))
    shown = words(doc)
    for cell in (cell for row in build(doc).rows for cell in row):
        assert " ".join(cell.split()) in shown
    for text in ('model.ffn: "none"', 'experiment: "other"', "model.depth: 4", "AMD EPYC"):
        assert text in shown
    assert "diverged: loss" in shown
    assert "failed: RuntimeError: out of memory" in shown
    assert "3 of 6 trials finished" in shown


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
    assert publish(doc, tmp_path) == []
    (tmp_path / "results.json").unlink()
    assert publish(doc, tmp_path) == first
    assert {path: path.read_bytes() for path in first} == content


def section(text: str, number: int) -> str:
    return text.partition(f"## {number}. ")[2].partition("\n## ")[0]


def test_the_answers_come_from_the_study_or_are_left_to_the_author():
    text = checklist(make_study({"full": [0.9, 0.8], "less": [0.7, "missing"]}))
    for number, fact in ((4, "vitcli ablate made-up"), (4, "Seeds: 0, 1;"), (8, "AMD EPYC")):
        assert fact in section(text, number)
    assert "1 of 4 trials" in section(text, 4)
    assert "10,000 training and 2,000 test images" in section(text, 6)
    unknown = checklist(make_study({"full": [0.9]}, data="imagefolder:mine"))
    for number in (5, 6, 8, 12):
        assert TO_DO in section(unknown, number)


def test_hostile_names_add_no_headings_and_no_markup():
    text = checklist(make_hostile_study())
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert len(headings) == 1 + len(ITEMS)
    assert "<script" not in text.replace("\\<", "")
    assert "\x1b" not in text
