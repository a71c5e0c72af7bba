"""`vitcli search` as it is typed: what it trains, where, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import typed
from tests.cli.conftest import SEARCH
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record

ROOT = Path("runs/mine")


@pytest.fixture
def search(tiny, without_workers) -> None:
    Path("mine.yaml").write_text(SEARCH)


def test_a_search_reads_no_test_image_and_its_last_line_tests_the_best(search):
    plan = json.loads(typed("search mine.yaml --dry-run --json")[0])
    assert (plan["trials"], len(plan["space"]), ROOT.exists()) == (3, 3, False)
    _, talk = typed("search mine.yaml -j 1")
    trials = [RunDir(path.parent) for path in ROOT.glob("*/seed0/result.json")]
    assert len(trials) == 3
    for run in trials:
        record = read_record(run)
        seen = [*record.result, *(key for line in record.metrics for key in line)]
        assert not [key for key in seen if key.startswith("test_")], "a search sees no test score"
        assert record.meta["num_test"] == 0
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
    runs = [RunDir(path.parent) for path in Path("runs/mine-confirm").glob("*/*/meta.json")]
    assert [read_record(run).meta["num_val"] for run in runs] == [0] * 4


def test_the_jobs_of_slurm_are_drivers_of_one_search(search):
    script, _ = typed("search mine.yaml --engine slurm -j 2 -s search.trials=4")
    assert "#SBATCH --array=1-2" in script.splitlines()
    driver = f"vitcli search mine.yaml -s search.trials=4 -j 1 -o {ROOT.resolve()} &"
    assert [line for line in script.splitlines() if line.endswith(driver)]


NO_POINT = "-j 1 -s search.space={model.num_heads:[3,5]}"


@pytest.mark.parametrize(
    ("words", "text"),
    [("--engine ray", "-j"), ("--status", "runs/mine"), (NO_POINT, "search.space")],
)
def test_a_mistake_is_one_line(search, words, text):
    assert text in typed(f"search mine.yaml {words}", 2)[1].splitlines()[-1]
