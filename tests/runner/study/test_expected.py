"""A run beside the learning curves of a committed result."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.fabricated import make_run
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.diff import changed_fields
from vitcli.runner.run.record import load_run
from vitcli.runner.study.expected import compare_expected
from vitcli.runner.text import portable_fields

RESULTS = Path(__file__).parents[3] / "experiments" / "results"
CURVES = [[(1, 0.10), (2, 0.30), (3, 0.5)], [(1, 0.14), (2, 0.34)], [(1, 0.12), (2, 0.29)]]


@pytest.fixture(autouse=True)
def result(here):
    """The committed result ``known`` of three seeds with ``CURVES``."""
    document = json.loads((RESULTS / "quickstart-avx2.json").read_text())
    document["data_hash"] = "d" * 64  # as in ``make_run``
    document["base_config"] = portable_fields(changed_fields(make_run(0).spec().replace(seed=0)))
    for trial, curve in zip(document["rows"][0]["trials"], CURVES, strict=True):
        trial["curve"] = curve
    file = Path("experiments/results/known.json")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(document))
    return document


def compare(curve=((1, 0.12),), expected="known", **fields):
    run = make_run(7, folder=Path("runs/mine"), **fields)
    return compare_expected(replace(load_run(str(run.path)), curve=curve), expected)


def test_the_band_is_the_prediction_interval_of_one_more_seed():
    scores = np.array([curve[0][1] for curve in CURVES])
    half = stats.t.ppf(0.975, 2) * scores.std(ddof=1) * np.sqrt(1 + 1 / 3)
    report = compare(((1, 0.12 + 1.01 * half), (2, 0.31), (3, 0.5), (4, 0.6)))
    rows = report.tables[0].rows
    places = [(row["epoch"], row["place"], row["seeds"]) for row in rows]
    assert places == [(1, "above", 3), (2, "inside", 3)], "epochs with two seeds or more"
    assert rows[0]["expected"] == pytest.approx(0.12)
    assert (rows[0]["low"], rows[0]["high"]) == pytest.approx((0.12 - half, 0.12 + half))
    facts = {fact.name: fact.value for fact in report.facts}
    assert (facts["num_outside"], facts["first_outside"]) == (1, 1)
    assert len(report.notes) == 1, "the same settings and images, but another seed"


def test_the_band_of_a_share_lies_between_0_and_100_percent(result):
    for trial, score in zip(result["rows"][0]["trials"], (0.1, 0.9, 0.5), strict=True):
        trial["curve"] = [[1, score]]
    Path("experiments/results/known.json").write_text(json.dumps(result))
    (row,) = compare(((1, 0.0),)).tables[0].rows
    assert (row["low"], row["high"], row["place"]) == (0, 1, "inside")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"changes": {"model.depth": 2}}, "depth=2"),
        ({"meta": {"data_hash": "e" * 64}}, "other images"),
    ],
)
def test_what_explains_a_distance_is_said_first(fields, said):
    assert said in compare(**fields).notes[0]


def test_the_settings_of_a_run_with_own_code_explain_a_distance_too():
    run = make_run(7, folder=Path("runs/mine"), changes={"data.val_split": 100})
    record = load_run(str(run.path))
    config = record.config | {"code": {"own.py": "0" * 64}}
    own = replace(record, known_spec=None, config=config, curve=((1, 0.12),))
    assert "val_split=100" in compare_expected(own, "known").notes[0]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (None, {"expected": "nope"}, "nope: no such result; there are .*known"),
        (None, {"expected": "known/no-ffn"}, "no row 'no-ffn', but baseline"),
        (None, {"curve": ()}, "no epoch"),
        (None, {"curve": ((9, 0.5),)}, "no epoch that two seeds of known have"),
        ("{}", {}, "known.json: not the document"),
        ("\0", {}, "known.json: not the document"),
        ('"headline"', {"expected": "experiments/results"}, "no such result"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_line(text, arguments, message):
    if text is not None:
        Path("experiments/results/known.json").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        compare(**arguments)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, InputError)
