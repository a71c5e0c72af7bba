"""`vitcli table`: output, exit codes and files."""

import json
from pathlib import Path

import pytest

from tests.cli.commands import printed, said
from vitcli import api
from vitcli.plugins.table.results_file import Choices, read_text
from vitcli.runner.errors import UserError
from vitcli.runner.files import sha256
from vitcli.runner.study.result import FIGURE_FORMATS

HEAD = "variant,seed,score,note\n"
ROWS = "a,0,1,x\na,1,2,x\na,2,4,x\nb,0,3,x\nb,1,3,x\nb,2,7,x\n"


@pytest.fixture
def results(here, sketched):
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
    read = read_text(HEAD + ROWS, "results.csv", choices, doc["command"])[0]
    expected = read.model_dump(mode="json")
    assert {**doc, "statistics": 0} == {**expected, "origin": {**doc["origin"]}, "statistics": 0}


@pytest.mark.parametrize(
    ("typed", "shown"), [("../a/b", "../a/b"), ("b/../c", "b/../c"), ("{}/a/b", "b")]
)
def test_the_shown_command_keeps_folders_that_are_relative(results, typed, shown):
    typed = typed.format(results.parent)
    doc = json.loads(printed("table", "results.csv", "-o", typed, "--json"))
    assert doc["command"] == f"vitcli table results.csv -o {shown} --json"


def test_a_missing_trial_ends_with_exit_code_3(results):
    results.write_text(HEAD + ROWS.replace("b,2,7,x\n", ""))
    said(3, "table", "results.csv")


FILES = (
    *("table.md", "table.tex", "table.csv", "report.html", "results.json"),
    *(f"figures/forest.{form}" for form in FIGURE_FORMATS),
)


@pytest.mark.parametrize(
    ("first", "file"),
    [
        *(("nothing", file) for file in FILES),
        *(("output", file) for file in ("table.md", "results.json", "figures/forest.pdf")),
        ("document", "table.md"),
    ],
)
def test_output_replaces_no_file_that_a_person_made_or_changed(results, first, file):
    """A document alone does not show that the other files are of vitcli."""
    if first == "output":
        printed("table", "results.csv", "-o", ".")
    if first == "document":
        Path("results.json").write_text(printed("table", "results.csv", "--json"))
    Path(file).parent.mkdir(exist_ok=True)
    with Path(file).open("a") as opened:
        opened.write(" mine")
    before = {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}
    said(2, "table", "results.csv", "-o", ".")
    with pytest.raises(UserError, match="vitcli"):
        api.table("results.csv").save(".")
    assert before == {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}


def test_a_folder_of_an_older_version_without_hashes_is_refused(results):
    printed("table", "results.csv", "-o", ".")
    document = json.loads(Path("results.json").read_text())
    assert document.pop("written").keys() >= {"report.html", "figures/forest.pdf"}
    Path("results.json").write_text(json.dumps(document, indent=2) + "\n")
    results.write_text(HEAD + ROWS + "a,3,4,x\nb,3,8,x\n")
    assert "another version" in said(2, "table", "results.csv", "-o", ".")


def test_output_is_replaced_after_the_file_has_changed(results):
    for rows in (ROWS, ROWS, ROWS.replace("7", "8")):
        results.write_text(HEAD + rows)
        printed("table", "results.csv", "-o", "out")
        document = json.loads(Path("out/results.json").read_text())
        assert document["origin"]["sha256"] == sha256(results.read_bytes())


@pytest.mark.parametrize("source", ["table.csv", "other.csv"])
def test_output_replaces_neither_its_input_nor_other_results(results, source):
    if source == "other.csv":
        printed("table", "results.csv", "-o", ".")
    Path(source).write_text(HEAD + ROWS)
    before = {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}
    said(2, "table", source, "-o", ".")
    assert before == {path: path.read_bytes() for path in Path().rglob("*.*") if path.is_file()}


def test_an_unknown_form_names_the_known_ones(results):
    with pytest.raises(UserError, match="text, md, latex, csv, json, html"):
        api.table("results.csv").render("markdown")
