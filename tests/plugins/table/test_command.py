"""`vitcli table`: output, exit codes and files."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import printed, said, vitcli
from vitcli import api
from vitcli.plugins.table.results_file import Choices, read_text
from vitcli.runner.errors import UserError
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


NAMED = re.sub(r",(\d),(?=\d)", r",s\g<1>5,", ROWS)
OTHER = ROWS.replace("7", "8")


@pytest.mark.parametrize(
    ("first", "second", "options", "code"),
    [
        (ROWS, OTHER, (), 2),
        (ROWS + OTHER.replace("a", "c").replace("b", "d"), ROWS, (), 2),
        (ROWS, ROWS.replace("b,2,7", "b,2,4").replace("a,2,4", "a,2,7"), (), 2),
        (ROWS, ROWS.replace("b", "c"), (), 2),
        (ROWS.replace("1,x", "2,x"), ROWS, (), 2),
        (ROWS, "b,3,9,x\na,3,9,x\n" + ROWS, (), 0),
        (NAMED, NAMED + "a,s01,9,x\nb,s01,9,x\n", (), 0),
        (ROWS.replace("a,2,4,x\n", ""), ROWS, (), 0),
        (ROWS, ROWS, ("--lower-is-better",), 0),
    ],
    ids=["score", "fewer", "swapped", "variant", "twice", "more", "named", "missing", "read"],
)
def test_output_replaces_results_of_the_same_name_only_if_it_holds_them(
    here, sketched, first, second, options, code
):
    for folder, rows in {"x1": first, "x2": second}.items():
        (here / folder).mkdir()
        (here / folder / "results.csv").write_text(HEAD + rows)
    vitcli("table", "x1/results.csv", "-o", "out")
    before = Path("out/results.json").read_bytes()
    said(code, "table", "x2/results.csv", *options, "-o", "out")
    assert (Path("out/results.json").read_bytes() == before) == (code == 2)


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
