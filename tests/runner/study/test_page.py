"""The page of a study: complete, inert, and always the same bytes."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from tests.fabricated_study import (
    HOSTILE,
    make_hostile_study,
    make_reference,
    make_row,
    make_study,
)
from vitcli.core.spec.metrics import ACCURACY
from vitcli.runner.study.images import ImageScores, contrast
from vitcli.runner.study.page import write_report
from vitcli.runner.study.publish import publish
from vitcli.runner.study.result import Candidate, StudyResult
from vitcli.runner.study.table import build

VOID = {"meta", "img", "br", "link"}
ALLOWED = (
    "html head meta title style body main h1 h2 p pre div table caption thead tbody tr th td ol li"
    " figure img figcaption dl dt dd code"
)


class Page(HTMLParser):
    """Elements, attributes and text of a page whose tags must balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED.split(), tag
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_a_page_shows_what_the_classes_lose(tmp_path):
    doc = make_study({"base": [0.9, 0.8], "less": [0.8, 0.7]})
    base = ImageScores({0: np.array([100.0, 100]), 1: np.array([100.0, 100])}, np.array([0, 1]))
    less = ImageScores({0: np.array([100.0, 0]), 1: np.array([100.0, 0])}, np.array([0, 1]))
    row = doc.rows[1].replace(contrast=contrast(less, base, ACCURACY))
    text = Page(page(doc.replace(rows=(doc.rows[0], row)), tmp_path)).text
    assert "Images and classes" in text
    assert "class 0class 1images" in re.sub(r"\s+", "", text.replace(" ", "~")).replace("~", " ")
    assert "less0.0\u2212100.01" in re.sub(r"\s+", "", text)
    assert "Images and classes" not in Page(page(doc, tmp_path)).text


def test_the_classes_of_a_known_data_set_have_their_names(tmp_path):
    doc = make_study({"base": [0.9, 0.8], "less": [0.8, 0.7]}, data="cifar10")
    labels = np.arange(10)
    base = ImageScores({0: np.full(10, 100.0), 1: np.full(10, 100.0)}, labels)
    less = ImageScores({0: 10.0 * labels, 1: 10.0 * labels}, labels)
    row = doc.rows[1].replace(contrast=contrast(less, base, ACCURACY))
    text = Page(page(doc.replace(rows=(doc.rows[0], row)), tmp_path)).text
    assert "airplaneautomobilebird" in re.sub(r"\s+", "", text)


def page(doc: StudyResult, folder) -> str:
    return write_report(doc, folder)[-1].read_text()


@pytest.fixture
def doc() -> StudyResult:
    rows = (
        make_row("baseline", [0.931, 0.934]),
        make_row("no-ffn", [0.867, "diverged"], changes={"model.ffn": "none"}),
        make_row("slow", ["failed", "missing"], changes={"experiment": "other"}),
    )
    return make_study({}, rows=rows, reference=make_reference({"no-ffn": 86.7}))


def test_the_page_shows_the_results(doc, tmp_path):
    seen = Page(page(doc, tmp_path))
    shown = " ".join(seen.text.split())
    for cell in [cell for row in build(doc).rows for cell in row]:
        assert " ".join(cell.split()) in shown
    for text in ('model.ffn: "none"', 'experiment: "other"', "model.depth: 4", "AMD EPYC"):
        assert text in shown
    assert "diverged: loss or gradient is not finite in epoch 2" in shown
    assert "failed: RuntimeError: out of memory" in shown
    assert "3 of 6 trials finished" in shown


def test_hostile_names_leave_the_page_inert(tmp_path):
    text = page(make_hostile_study(), tmp_path)
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


def test_a_tuned_study_shows_its_settings(tmp_path):
    settings = tuple(
        Candidate(setting={"optim.lr": lr}, val_accuracy=value)
        for lr, value in ((0.001, 0.8), (0.01, None))
    )
    row = make_row("full", [0.9]).replace(candidates=settings, chosen={"optim.lr": 0.001})
    shown = Page(page(make_study({}, rows=(row,)), tmp_path)).text
    assert "lr=0.001 (chosen)" in shown
    assert "80.00" in shown


def test_publishing_twice_writes_the_files_once(doc, tmp_path):
    first = publish(doc, tmp_path)
    content = {path: path.read_bytes() for path in first}
    assert {path.name for path in first} >= {"report.html", "results.json", "table.tex"}
    assert publish(doc, tmp_path) == []
    (tmp_path / "results.json").unlink()
    assert publish(doc, tmp_path) == first
    assert {path: path.read_bytes() for path in first} == content
