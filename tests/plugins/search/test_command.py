"""`vitcli search` as it is typed, its files among the others, and what is said if it is off."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import offered, printed, said, typed
from tests.cli.conftest import SEARCH
from vitcli import plugin
from vitcli.runner.errors import InputError
from vitcli.runner.experiment.kinds import FILE_KINDS
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import read_record
from vitcli.runner.study.result import DOCUMENTS
from vitcli.runner.study.table import read_document

ROOT = Path("runs/mine")


@pytest.fixture
def search(tiny, without_workers, sketched) -> None:
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

    assert "not removed" not in said(0, "runs", "rm", "mine", "-y")
    assert not ROOT.exists()


def test_the_jobs_of_slurm_are_drivers_of_one_search(search):
    script, _ = typed("search mine.yaml --engine slurm -j 2 -s search.trials=4")
    assert "#SBATCH --array=1-2" in script.splitlines()
    driver = f"vitcli search mine.yaml -s search.trials=4 -j 1 -o {ROOT.resolve()} &"
    assert [line for line in script.splitlines() if line.endswith(driver)]


def test_a_space_without_a_point_is_a_mistake(search):
    typed("search mine.yaml -j 1 -s search.space={model.num_heads:[3,5]}", 2)


@pytest.mark.parametrize("file", ["report.html", "figures/pareto.png", "plan.json"])
def test_a_file_of_a_person_in_the_folder_is_refused(search, file):
    path = Path("paper", file)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert str(path) in typed("search mine.yaml -o paper", 2)[1]
    assert list(Path("paper").rglob("*.*")) == [path]


@pytest.mark.parametrize("option", ["", "--dry-run", "--status"])
def test_the_folder_of_a_study_or_an_old_search_is_refused(search, option):
    Path("paper").mkdir()
    Path("paper/plan.json").write_text('{"study": "s", "trials": {}}')
    assert "from before vitcli 1.1" in typed(f"search mine.yaml -o paper {option}", 2)[1]


def test_a_search_is_named_by_what_reads_experiment_files(search):
    assert "vitcli search mine.yaml" in said(2, "train", "mine.yaml")
    unknown = said(2, "train", "quickstart", "-s", "search.trials=3")
    assert "only a file can have it" in unknown
    assert "vitcli search mine.yaml" in said(0, "experiments", "show", "mine.yaml")
    schema = json.loads(printed("experiments", "schema"))
    assert schema["properties"]["search"]
    checked = json.loads(printed("experiments", "validate", "mine.yaml", "--json"))
    (row,) = checked["experiments"]
    assert row["ok"]
    assert row["parameters"] > 0


def test_completion_offers_searches(here, capsys):
    assert offered("vitcli search search-g", capsys) == ["search-grid"]


def test_without_the_plugin_a_search_file_says_what_it_needs(search, monkeypatch):
    for table in (FILE_KINDS, DOCUMENTS):  # before the variable changes what they restore
        monkeypatch.setattr(table, "data", {**table.built_in})
    monkeypatch.setenv(plugin.VARIABLE, "no:search")
    needs = "needs the plugin search, which is off"
    assert f"mine.yaml: search: {needs}" in said(2, "train", "mine.yaml")
    assert needs in typed("experiments validate mine.yaml", 2)[0]
    with pytest.raises(InputError, match=needs):
        read_document('{"name": "mine", "searched": {}}')
    listed = json.loads(printed("experiments", "ls", "--json"))["experiments"]
    (grid,) = [row for row in listed if row["name"] == "search-grid"]
    assert (grid["kind"], needs in grid["question"]) == ("broken", True)
