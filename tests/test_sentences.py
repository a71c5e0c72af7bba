"""Sentences of the docs say what their numbers say: the wording follows from the intervals."""

import json
import re
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PROSE = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "experiments").glob("*.yaml")),
]


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    spec = spec_from_file_location("sentences", ROOT / ".ci" / "sentences.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, kw_only=True)
class Row:
    """The numbers of a row that a sentence reads."""

    variant: str
    difference: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    joint_low: float | None = None
    joint_high: float | None = None
    p_holm: float | None = None
    p_equivalent_holm: float | None = None
    num_diverged: int = 0
    verdict: str | None = None


def row(name: str, low: float | None = None, high: float | None = None, **fields) -> Row:
    """Return a row whose joint interval is half as wide again as its own; ``fields`` go first."""
    made = {"variant": name, "ci_low": low, "ci_high": high}
    if low is not None and high is not None:
        middle, half = (low + high) / 2, 0.75 * (high - low)
        made |= {"difference": middle, "joint_low": middle - half, "joint_high": middle + half}
    return Row(**made | fields)


def said_of(sentences: ModuleType, *rows: Row, same_setting: bool = False) -> list[str]:
    return sentences.study_sentences([row("full"), *rows], same_setting=same_setting)


def test_an_interval_around_0_is_undecided_and_not_as_good_as_the_baseline(sentences):
    assert said_of(sentences, row("no-norm", -1.78, 3.74)) == [
        "Undecided: `no-norm` (+0.98 [-3.16, +5.12]). The data are compatible with no difference,"
        " and with every other difference inside the interval.",
        sentences.UNTESTED,
    ]


def test_an_interval_on_one_side_of_0_is_a_difference(sentences):
    assert said_of(sentences, row("a", -3, -1), row("b", 1, 3), row("c", -2, -1)) == [
        "Lower accuracy than `full`: `a` (-2.00 [-3.50, -0.50]) and `c` (-1.50 [-2.25, -0.75]).",
        "Higher accuracy than `full`: `b` (+2.00 [+0.50, +3.50]).",
        sentences.UNTESTED,
    ]
    assert said_of(sentences, row("a", -3, -1, p_holm=0.01)) == [
        "Lower accuracy than `full`: `a` (-2.00 [-3.00, -1.00], p = 0.010)."
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        # With enough seeds for a test, the adjusted p decides, not the interval of one row.
        (row("x", 0.1, 3, p_holm=0.2), "around"),
        (row("x", 0.1, 3, p_holm=0.04), "above"),
        (row("x", -3, -0.1, p_holm=0.04), "below"),
        (row("x", -0.5, 0.4, p_holm=0.9, p_equivalent_holm=0.03), "equivalent"),
        (row("x", -0.5, 0.4, p_holm=0.9, p_equivalent_holm=0.3), "around"),
        (row("x", -0.5, 0.4, p_equivalent_holm=0.03), "equivalent"),
        # With too few, the joint interval does.
        (row("x", -3, -0.1), "around"),
        (row("x", -3, -1), "below"),
        (row("x"), "unknown"),
        (row("x", -3, -1, num_diverged=1), "diverged"),
    ],
)
def test_the_finding_of_a_row(sentences, found, expected):
    assert sentences.finding(found) == expected


def test_sizes_are_not_compared_where_settings_differ(sentences):
    rows = row("a", -3, -1, verdict="same"), row("b", -1, 1, verdict="undecided")
    said = said_of(sentences, *rows)[-1]
    assert said == (
        "Direction beside the source: same: `a`; undecided: `b`. Sizes are not compared, because"
        " the settings differ."
    )
    said = said_of(sentences, row("a", -3, -1, verdict="replicates"), same_setting=True)[-1]
    assert said == "Beside the source: replicates: `a`."


def growth(exponent: float, error: float, stated: str = "N") -> dict[str, object]:
    return {
        "attention": "rule",
        "kernels": "plain",
        "time_exponent": [exponent, error],
        "memory_exponent": None,
        "stated_time": stated,
        "stated_memory": "N",
    }


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (growth(2.46, 0.76, "N^2"), "contains the stated exponent, for `rule` (2.46; stated 2)."),
        (growth(1.16, 0.15), "grows faster than stated, for `rule` (1.16; stated 1)."),
        (growth(1.93, 0.04, "N^2"), "grows more slowly than stated, for `rule` (1.93; stated 2)."),
        (growth(1.0, 0.0), "contains the stated exponent, for `rule` (1.00; stated 1)."),
    ],
)
def test_a_growth_differs_from_the_stated_one_only_if_its_interval_does(sentences, measured, words):
    (said,) = sentences.growth_sentences([measured])
    assert said.endswith(words)


def test_a_growth_that_is_no_power_is_refused(sentences):
    with pytest.raises(ValueError, match="'N log N' is no power of N"):
        sentences.stated_exponent("N log N")


def test_the_published_pages_hold_the_sentences_of_their_results(sentences):
    """The wording of each page is that of its numbers, so both change together."""
    architectures, results = (
        (ROOT / "docs" / f"{page}.md").read_text() for page in ("architectures", "results")
    )
    rows = json.loads((RESULTS / "speed" / "attention-cpu.json").read_text())["rows"]
    for said in sentences.growth_sentences(rows):
        assert said in architectures
    for study in ("ablation-cifar10-tiny", "ablation-quickstart"):
        doc = read_document((RESULTS / f"{study}.json").read_text())
        for said in sentences.study_sentences(compare(doc), same_setting=doc.same_setting):
            assert said in results


CLAIMS = {
    "about as accurate|ends as well": "no interval around 0 shows equality",
    "rules .{0,40}are linear": "an exponent is beside its interval",
    "grows faster than (quadratically|N\\^2)": "an exponent is beside its interval",
    "sizes are (near|close)": "a note says that sizes cannot be compared",
    "No plain ViT on 32x32": "cifar10-tiny-native is one",
}
"""Words that stood beside numbers which do not say so -> why they are wrong."""


@pytest.mark.parametrize("words", CLAIMS)
def test_sentences_that_their_numbers_refuted_stay_away(words):
    told = {path.name for path in PROSE if re.search(words, path.read_text())}
    assert not told, CLAIMS[words]


TRAINING_NOTES = {"cifar10-tiny": (64, 64), "cifar10-tiny-native": None}


def test_two_experiments_have_the_parameter_count_of_the_training_notes():
    """tests/test_experiments.py counts the parameters of both; here are their image sizes."""
    resize = {name: load_experiment(name).spec.data.resize for name in TRAINING_NOTES}
    assert resize == TRAINING_NOTES
