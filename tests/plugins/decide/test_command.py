"""`vitcli decide --csv`: verdicts on pairs that another program has trained, and exit codes."""

import csv
import json
from pathlib import Path

import pytest

from tests.cli.commands import document, said, vitcli

BEST = [70.1, 70.6, 69.8, 70.3, 70.0, 70.4]
GAIN = [1.0, 1.3, 0.8, 1.1, 1.2, 0.9]


def write(rows, path="r.csv", header=("variant", "seed", "test_accuracy")) -> str:
    with Path(path).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def pairs(count, gains=GAIN, name="idea"):
    best = [("best", seed, BEST[seed]) for seed in range(count)]
    return best + [(name, seed, BEST[seed] + gains[seed]) for seed in range(count)]


@pytest.mark.parametrize(
    ("count", "gains", "words", "code", "verdict"),
    [
        (3, GAIN, [], 3, "more pairs"),
        (6, GAIN, [], 0, "better"),
        (6, [-gain for gain in GAIN], [], 6, "worse"),
        (6, [-gain for gain in GAIN], ["--lower-is-better"], 0, "better"),
        (5, [0.5, -0.9, -1.5, 0.1, -1.0], [], 6, "unlikely to be better"),
        (6, [0.1, -0.1, 0.0, 0.05, -0.05, 0.02], ["--margin", 2], 0, "equivalent"),
    ],
)
def test_the_exit_code_says_the_answer(here, count, gains, words, code, verdict):
    found = document("decide", "--csv", write(pairs(count, gains)), *words, code=code)
    assert (found["verdict"], found["change"], found["against"]) == (verdict, "idea", "best")
    shown = vitcli("decide", "--csv", "r.csv", *words)[1]
    for text in (shown, found["unit"]):
        assert ("above 0 is better" in text) == ("--lower-is-better" in words)
    if found["interval"]:
        assert found["interval"][0] < found["difference"] < found["interval"][1]


def test_pairs_are_taken_in_the_order_of_seeds_up_to_the_first_gap(here):
    rows = [row for row in pairs(6) if row[:2] != ("idea", 3)]
    words = ("--csv", write([*reversed(rows)]), "--against", "best")
    found = document("decide", *words, code=3)
    assert (found["pairs"], "seed 3" in "".join(found["notes"])) == (3, True)


def test_a_planned_order_of_the_seeds_is_that_of_the_looks(here):
    header = ("variant", "seed", "test_accuracy", "planned_seeds", "planned_order")
    rows = [(*row, 6, (row[1] + 4) % 6) for row in pairs(6, [-3.0, 3.0, *GAIN[:4]])]
    found = document("decide", "--csv", write(rows, header=header))
    assert (found["verdict"], found["pairs"]) == ("better", 4)


def test_seeds_that_are_names_count_in_the_order_of_the_file(here):
    names = ["wine", "iris", "set10", "set9"]
    rows = [(variant, names[seed], score) for variant, seed, score in pairs(4)]
    later = [("best", "adult", 70.0), ("idea", "adult", 60.0)]
    judged = [
        json.loads(vitcli("decide", "--csv", write(some), "--json")[1])
        for some in (rows[:7], [*rows[:3], *rows[4:7]], rows, rows + later)
    ]
    gap, end, decided, after = judged
    assert (gap["pairs"], gap["notes"][-1].endswith("seed set9")) == (3, True)
    assert (end["pairs"], end["notes"][-1].endswith("a seed after set10")) == (3, True)
    assert (decided["verdict"], decided["pairs"]) == ("better", 4)
    assert after == decided, "a name that comes later moves no look"


def test_one_of_several_variants_is_judged(here):
    path = write(pairs(6) + [("other", seed, BEST[seed]) for seed in range(6)])
    assert "idea, other" in said(2, "decide", "--csv", path)
    assert "nothing" in said(2, "decide", "nothing", "--csv", path)
    found = document("decide", "idea", "--csv", path)
    assert (found["change"], found["verdict"]) == ("idea", "better")


@pytest.mark.parametrize(
    ("rows", "words", "code"),
    [
        (pairs(6), ["--max-seeds", 5], 4),
        ([("best", 0, 70.0)], [], 2),
        (pairs(6), ["--max-seeds", 3], 2),
        (pairs(6), ["--score", "loss"], 4),
        (pairs(6), ["--data", "cifar10"], 2),
        (pairs(6), ["--dry-run"], 2),
        (pairs(6), ["--engine", "slurm", "-j", 2], 2),
        (pairs(6), ["--gpus", 1], 2),
    ],
)
def test_bad_input(here, rows, words, code):
    assert said(code, "decide", "--csv", write(rows), *words)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (("model", "seed", "accuracy"), ["--variant", "model"]),
        (("variant", "run", "accuracy"), ["--pairs", "run"]),
        (("variant", "seed", "accuracy (%)"), ["--unit", "percent"]),
    ],
)
def test_what_the_reading_of_a_file_asks_for_can_be_typed(here, header, words):
    rows = [(name, seed, score / 100) for name, seed, score in pairs(6)]
    path = write(rows, header=header)
    text = said(4, "decide", "--csv", path)
    assert words[0] in text, text
    assert document("decide", "--csv", path, *words)["verdict"] == "better"


def test_a_file_is_needed_and_columns_that_are_not_used_are_named(here):
    rows = [(*row, "x") for row in pairs(6)]
    path = write(rows, header=("variant", "seed", "accuracy", "host"))
    assert "not used: host" in said(0, "decide", "--csv", path, "--score", "accuracy")
    assert "none.csv" in said(4, "decide", "--csv", "none.csv")


@pytest.mark.parametrize(("who", "code", "verdict"), [("idea", 6, "diverged"), ("best", 4, "")])
def test_a_diverged_training_ends_the_comparison_when_its_pair_is_needed(here, who, code, verdict):
    rows = [(*row, "finished") for row in pairs(6)]
    rows = [(*row[:2], "", "diverged") if row[:2] == (who, 3) else row for row in rows]
    path = write(rows, header=("variant", "seed", "test_accuracy", "state"))
    found, out, _ = vitcli("decide", "--csv", path, "--json")
    assert found == code
    assert not verdict or (json.loads(out)["verdict"], json.loads(out)["pairs"]) == (verdict, 3)
    enough = [(*row, "finished") for row in pairs(6)] + [(who, 6, "", "diverged")]
    path = write(enough, header=("variant", "seed", "test_accuracy", "state"))
    assert vitcli("decide", "--csv", path)[0] == 0, "a verdict stays"
