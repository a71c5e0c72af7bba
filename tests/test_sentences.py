"""Sentences of the docs say what their numbers say: the wording follows from the intervals."""

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.study.judgement import Effect
from vitcli.runner.study.statistics import RowStatistics, compare
from vitcli.runner.study.table import read_document

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PROSE = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "experiments").glob("*.yaml")),
]


def load(path: str) -> ModuleType:
    spec = spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sentences() -> ModuleType:
    return load(".ci/sentences.py")


@pytest.fixture(scope="module")
def benchmarks() -> ModuleType:
    return load("experiments/speed/benchmark_tables.py")


def said_of(sentences: ModuleType, *rows: RowStatistics, same_setting: bool = False) -> list[str]:
    return sentences.study_sentences([row("full", effect=None), *rows], same_setting=same_setting)


def row(name: str, **fields: Any) -> RowStatistics:
    """Return a row of three seeds with a pooled interval; ``fields`` go first."""
    known = {"difference": -2.0, "ci_low": -3.0, "ci_high": -1.0, "joint_low": -3.5}
    known |= {"joint_high": -0.5, "pooled_low": -2.6, "pooled_high": -1.4, "seeds_missing": 5}
    described = {"n": 3, "num_diverged": 0, "num_unfinished": 0, "score_mean": 70.0}
    described |= {"score_sd": 1.0, "seconds_mean": 1.0, "seconds_total": 3.0}
    return RowStatistics(variant=name, **described | known | {"effect": "undecided"} | fields)


EIGHT = {"p_holm": 0.01, "seeds_missing": None}
ALONE = {"pooled_low": None, "pooled_high": None}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            row("a"),
            [
                "Undecided: `a` (-2.00 [-2.60, -1.40]). The data are compatible with no difference,"
                " and with every other difference inside the interval.",
                "POOLED",
            ],
        ),
        (
            row("a", effect="worse"),
            ["Lower accuracy than `full`: `a` (-2.00 [-2.60, -1.40]).", "POOLED"],
        ),
        (
            row("a", effect="worse", **EIGHT),
            ["Lower accuracy than `full`: `a` (-2.00 [-3.00, -1.00], p = 0.010)."],
        ),
        (
            row("a", **ALONE),
            [
                "Undecided, because there are too few seeds for a p-value, and no seed variance"
                " that is pooled over the rows of the study: `a` (-2.00 [-3.00, -1.00]; 5 more"
                " seeds).",
            ],
        ),
        (row("a", effect=None, joint_low=None), ["Too few seeds for an interval: `a`."]),
        (
            row("a", effect="baseline diverged"),
            ["`full` diverged with some seed, so no difference is stated: `a`."],
        ),
    ],
)
def test_a_sentence_shows_what_decides(sentences, found, said):
    texts = [getattr(sentences, text, text) for text in said]
    assert said_of(sentences, found) == texts


def test_rows_of_one_effect_share_a_sentence(sentences):
    rows = [row(name, effect="better", **EIGHT) for name in "abc"]
    (said,) = said_of(sentences, *rows)
    assert said.startswith("Higher accuracy than `full`: `a` (")
    assert "and `c` (" in said


def test_every_effect_has_a_sentence(sentences):
    assert sentences.FINDINGS.keys() == {*get_args(Effect), None}


def test_sizes_are_not_compared_where_settings_differ(sentences):
    rows = row("a", verdict="same"), row("b", verdict="undecided")
    said = said_of(sentences, *rows)[-1]
    assert said == (
        "Direction beside the source: same: `a`; undecided: `b`. Sizes are not compared, because"
        " the settings differ."
    )
    said = said_of(sentences, row("a", verdict="replicates"), same_setting=True)[-1]
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
def test_a_growth_differs_from_the_stated_one_only_if_its_interval_does(
    benchmarks, measured, words
):
    (said,) = benchmarks.growth_sentences([measured])
    assert said.endswith(words)


def test_a_growth_that_is_no_power_is_refused(benchmarks):
    with pytest.raises(ValueError, match="'N log N' is no power of N"):
        benchmarks.stated_exponent("N log N")


def test_the_published_pages_hold_the_sentences_of_their_results(sentences, benchmarks):
    """The wording of each page is that of its numbers, so both change together."""
    architectures, results = (
        (ROOT / "docs" / f"{page}.md").read_text() for page in ("architectures", "results")
    )
    rows = json.loads((RESULTS / "speed" / "attention-cpu.json").read_text())["rows"]
    for said in benchmarks.growth_sentences(rows):
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
