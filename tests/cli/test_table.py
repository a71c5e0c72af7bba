"""`vitcli table`: output, exit codes and files."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import printed, said
from vitcli import api
from vitcli.runner.errors import UserError
from vitcli.runner.study.results_file import Choices, read_text

HEAD = "variant,seed,score,note\n"
ROWS = "a,0,1,x\na,1,2,x\na,2,4,x\nb,0,3,x\nb,1,3,x\nb,2,7,x\n"


@pytest.fixture
def results(here):
    (here / "results.csv").write_text(HEAD + ROWS)
    return here / "results.csv"


def test_options_reach_the_document(results):
    words = ["--baseline", "b", "--lower-is-better", "--margin", "2", "--unit", "none"]
    words += ["--plan", "5"]
    columns = ["--score", "score", "--variant", "variant", "--pairs", "seed"]
    doc = json.loads(printed("table", "results.csv", *words, *columns, "--format", "json"))
    assert (doc["rows"][0]["variant"], doc["margin"]) == ("b", 2)
    assert doc["plan"]["seeds"] == 5
    assert not doc["origin"]["higher_is_better"]
    choices = Choices(baseline="b", lower_is_better=True, margin=2.0, plan=5)
    expected = read_text(HEAD + ROWS, "results.csv", choices, doc["command"])[0].model_dump(
        mode="json"
    )
    assert {**doc, "statistics": 0} == {**expected, "origin": {**doc["origin"]}, "statistics": 0}


def test_a_missing_trial_ends_with_exit_code_3(results):
    results.write_text(HEAD + ROWS.replace("b,2,7,x\n", ""))
    said(3, "table", "results.csv")


def test_output_writes_the_page_and_replaces_it(results):
    for _ in range(2):
        printed("table", "results.csv", "-o", "out")
    assert (results.parent / "out" / "report.html").is_file()


@pytest.mark.parametrize("file", ["table.csv", "report.html", "table.tex", "results.json"])
def test_output_replaces_neither_its_input_nor_a_file_of_a_person(results, file):
    source = file if file == "table.csv" else "results.csv"
    (results.parent / file).write_text(HEAD + ROWS if source == file else "{}")
    before = {path: path.read_bytes() for path in results.parent.iterdir()}
    assert file in said(2, "table", source, "-o", ".").splitlines()[-1]
    with pytest.raises(UserError, match=file):
        api.table(source).save(".")
    assert before == {path: path.read_bytes() for path in results.parent.iterdir()}


@pytest.mark.parametrize("file", ["table.md", "report.html", "figures/forest.svg", "other.csv"])
def test_output_replaces_neither_what_a_person_changed_nor_other_results(results, file):
    printed("table", "results.csv", "-o", ".")
    Path(file).touch()
    Path(file).write_text(Path(file).read_text() + (HEAD + ROWS if file == "other.csv" else " "))
    before = {path: path.read_bytes() for path in results.parent.rglob("*.*") if path.is_file()}
    said(2, "table", file if file == "other.csv" else "results.csv", "-o", ".")
    assert before == {path: path.read_bytes() for path in before}


def test_an_unknown_form_names_the_known_ones(results):
    with pytest.raises(UserError, match="text, md, latex, csv, json, html"):
        api.table("results.csv").render("markdown")


@pytest.mark.parametrize("file", ["table.tex", "report.html"])
def test_a_document_alone_does_not_show_that_the_other_files_are_ours(results, file):
    Path("results.json").write_text(printed("table", "results.csv", "--json"))
    Path(file).write_text("mine")
    said(2, "table", "results.csv", "-o", ".")
    assert Path(file).read_text() == "mine"
