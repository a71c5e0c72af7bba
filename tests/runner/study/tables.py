"""A made-up study, the cells of its table, and a strict reader of pages."""

from html.parser import HTMLParser
from typing import get_args

import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fabricated_study import make_reference, make_row, make_study, make_trial
from vitcli.runner.run.record import State
from vitcli.runner.study.images import ImageScores, contrast
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import build

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


def cells(doc: StudyResult) -> list[dict[str, str]]:
    table = build(doc)
    heads = [column.header for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def cell(doc: StudyResult, variant: str, header: str) -> str:
    return next(row[header] for row in cells(doc) if row["variant"] == variant)


@st.composite
def studies(draw):
    """Draw studies with any names and states; numbers of unfinished trials must not count."""
    names = draw(st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=4))
    num_seeds = draw(st.integers(0, 9))
    score = st.integers(0, 2000).map(lambda right: right / 2000)
    result = score | st.sampled_from(get_args(State)[1:])
    poison = {"result": {"test_accuracy": 0.123456789, "train_seconds": 1e9}, "epochs": 77}
    rows = []
    for name in names:
        values = draw(st.lists(result, min_size=num_seeds, max_size=num_seeds))
        trials = [
            make_trial(seed, value, **(poison if isinstance(value, str) else {}))
            for seed, value in enumerate(values)
        ]
        rows.append(make_row(name, [], trials=tuple(trials)))
    chosen = draw(st.lists(st.sampled_from(names), unique=True))
    reference = make_reference({name: draw(st.integers(0, 1000)) / 10 for name in chosen})
    return make_study(
        {},
        rows=tuple(rows),
        reference=draw(st.sampled_from([None, reference])),
        same_setting=draw(st.booleans()),
        num_comparisons=len(names) - 1 + draw(st.integers(0, 3)),
    )


def with_images(doc: StudyResult, noise: float) -> StudyResult:
    """Return the study with predictions, whose differences vary by ``noise`` over 400 images."""
    random, rows = np.random.default_rng(0), []
    for row, found in zip(doc.rows[1:], compare(doc)[1:], strict=True):
        pairs = zip(row.trials, doc.rows[0].trials, strict=True)
        points = [100 * (a.test_score - b.test_score) for a, b in pairs]
        shape = random.normal(0, noise, 400)
        shape -= shape.mean()
        scores = ImageScores({seed: point + shape for seed, point in enumerate(points)})
        zero = ImageScores({seed: 0 * each for seed, each in scores.by_seed.items()})
        made = contrast(scores, zero, doc.headline)
        assert made is not None
        assert made.crossed.mean == pytest.approx(found.difference)
        rows.append(row.replace(contrast=made, images=scores.crossed()))
    return doc.replace(rows=(doc.rows[0], *rows))


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
