"""`vitcli search` as it is typed: what it trains, where, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import typed
from tests.cli.conftest import SEARCH
from vitcli.runner.run.folder import RunDir

ROOT = Path("runs/mine")


@pytest.fixture
def search(tiny, without_workers) -> None:
    Path("mine.yaml").write_text(SEARCH)


def test_a_search_reads_no_test_image_and_its_last_line_tests_the_best(search):
    _, talk = typed("search mine.yaml -j 1")
    trials = [RunDir(path.parent) for path in ROOT.glob("*/seed0/result.json")]
    assert len(trials) == 3
    for run in trials:
        seen = [*run.read("result.json"), *(key for line in run.metrics() for key in line)]
        assert not [key for key in seen if key.startswith("test_")], "a search sees no test score"
        assert run.read("meta.json")["num_test"] == 0
    command = talk.strip().splitlines()[-1].partition("vitcli ")[2]
    assert command == "ablate runs/mine/mine-confirm.yaml"

    found = json.loads(typed("search mine.yaml --json")[0])
    assert found == json.loads(typed("search mine.yaml --status --json")[0])
    assert [row["trials"][0]["state"] for row in found["rows"]] == ["finished"] * 3
    more = json.loads(typed("search mine.yaml -j 1 -s search.trials=4 --json")[0])
    kept = [row["variant"] for row in more["rows"]]
    assert (len(kept), {row["variant"] for row in found["rows"]} < {*kept}) == (4, True)

    tested = json.loads(typed(f"{command} -j 1 --seeds 10,11 --json")[0])
    assert [row["variant"] for row in tested["rows"]] == ["default", "best"]
    accuracies = [t["test_accuracy"] for row in tested["rows"] for t in row["trials"]]
    assert len(accuracies) == 4
    assert None not in accuracies
    assert {
        RunDir(path.parent).read("meta.json")["num_val"]
        for path in Path("runs/mine-confirm").glob("*/*/meta.json")
    } == {0}


def test_a_dry_run_trains_nothing(search):
    found = json.loads(typed("search mine.yaml --dry-run --json")[0])
    assert (found["trials"], len(found["space"]), found["seconds"] > 0) == (3, 3, True)
    assert not ROOT.exists()


def test_a_space_without_a_valid_point_is_refused(search):
    Path("mine.yaml").write_text(SEARCH.replace("[1, 3]", "[3, 5]"))
    assert "mine.yaml" in typed("search mine.yaml -j 1", 2)[1].splitlines()[-1]
