"""The table of a study is well formed in every format."""

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fabricated_study import make_reference, make_study
from tests.patience import HANG
from tests.runner.study.tables import ROWS, cells
from vitcli.runner.errors import InputError
from vitcli.runner.study.result import State
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import FORMATS, build, read_document, render
from vitcli.runner.tables import LATEX


def test_each_format_writes_its_own_signs(doc):
    # no-ffn: -6.4, -6.6, -6.2, so -6.40 +- 4.303 * 0.2 / sqrt(3).
    assert re.search(r"86.70 \+- 0.10 +-6.40 \[-6.90, -5.90\]", render(doc, "text"))
    assert r"86.70 +- 0.10 | -6.40 [-6.90, -5.90] |" in render(doc, "md")
    assert r"86.70 $\pm$ 0.10 & $-$6.40 [$-$6.90, $-$5.90]" in render(doc, "latex")
    assert '&plusmn; 0.10</td><td class="number">&minus;6.40 [&minus;6.90' in render(doc, "html")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["doc", "hostile"])
def test_the_same_document_gives_the_same_bytes(form, name, request):
    doc = request.getfixturevalue(name)
    text = render(doc, form)
    assert text == render(doc, form) == render(read_document(render(doc, "json")), form)
    assert text == text.rstrip("\n")


def test_json_is_the_document_and_its_statistics(doc):
    value = json.loads(render(doc, "json"))
    assert [row["variant"] for row in value["statistics"]] == list(ROWS)
    assert value["statistics"][1]["difference"] == round(compare(doc)[1].difference, 6)
    assert read_document(render(doc, "json")) == doc


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"name": "x"}', "[" * 100_000, "\0"])
def test_other_files_are_refused_in_one_line(text):
    with pytest.raises(InputError, match="not the document of a study") as error:
        read_document(text)
    assert "\n" not in str(error.value)


def test_csv_is_plain_numbers(doc):
    rows = list(csv.DictReader(io.StringIO(render(doc, "csv"))))
    assert [row["variant"] for row in rows] == list(ROWS)
    for row, found in zip(rows, compare(doc), strict=True):
        for name in ("score_mean", "score_sd", "difference", "ci_low", "ci_high", "p_holm"):
            value = getattr(found, name)
            assert row[name.replace("score", "accuracy")] == (
                "" if value is None else str(round(value, 6))
            )
        assert int(row["n"]) == found.n
    assert rows[0]["seeds_missing"] == ""
    assert rows[0]["parameters"] == "305002"


def test_text_is_ascii_and_aligned(doc, hostile):
    for each in (doc, hostile):
        text = render(each, "text")
        assert text.isascii()
        assert all(line.isprintable() for line in text.split("\n"))
    lines = render(doc, "text").splitlines()
    assert max(map(len, lines)) <= 160
    rules = [i for i, line in enumerate(lines) if set(line) == {"-"}]
    body = lines[rules[1] + 1 : rules[2]]
    starts = {line.index("305,002") for line in body if "305,002" in line}
    assert starts == {lines[rules[1] - 1].index("parameters") + len("par")}


def test_markdown_rows_have_equal_columns(doc, hostile):
    for each in (doc, hostile):
        lines = [line for line in render(each, "md").splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert bars == {len(build(each).columns) + 1}
        assert len(lines) == len(each.rows) + 2


def test_markdown_leaves_names_readable():
    doc = make_study({"no_ffn": [0.5], "_x_ <b>": [0.5], "[a](b)": [0.5]}, question="")
    assert "| no_ffn |" in render(doc, "md")
    assert r"| [a\](b) |" in render(doc, "md")
    assert r"| \_x\_ \<b\> |" in render(doc, "md")


class Page(HTMLParser):
    """The text of each cell. Every tag must belong to a table and be closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.scopes: list[str | None] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag in {"table", "caption", "thead", "tbody", "tr", "th", "td", "ol", "li"}
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
        if tag == "th":
            self.scopes.append(dict(attrs).get("scope"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def test_html_has_the_cells_of_the_table(doc, hostile):
    for each in (doc, hostile):
        table, page = build(each), Page(render(each, "html"))
        heads = [column.header for column in table.columns]
        for row, wanted in zip(page.rows, [heads, *table.rows], strict=True):
            assert row == [" ".join(re.sub(r"\x1b", " ", text).split()) for text in wanted]
        assert page.scopes == ["col"] * len(heads) + ["row"] * len(each.rows)


TOKEN = re.compile(r"\\(begin|end)\{([a-z]+)\}(\{[lr]+\})?|\\([A-Za-z]+|.)|([{}$&#%~^_\n])|.", re.S)


def check_latex(text: str) -> None:
    """Check that groups and environments balance and that special characters are escaped."""
    stack, cells, columns = ["document"], 0, 0
    assert text.isascii()
    for environment, name, spec, command, special in TOKEN.findall(text):
        if environment == "begin":
            stack.append(name)
            columns = len(spec) - 2 if spec else columns
        elif environment == "end":
            assert stack.pop() == name
        elif (
            command == "\\" and stack[-1] != "{"
        ):  # in braces there are the lines of a stacked header
            assert cells == columns - 1, "a row with another number of cells"
            cells = 0
        elif special == "{":
            stack.append("{")
        elif special == "}":
            assert stack.pop() == "{"
        elif special == "$":
            stack.pop() if stack[-1] == "$" else stack.append("$")
        elif special == "&":
            assert stack[-1] == "tabular"
            cells += 1
        else:
            assert special in ("", "\n"), f"{special} without a backslash"
    assert not re.search(r"\\\\\s*[*\[]", text), "taken as the argument of a line's end"
    assert stack == ["document"]


@pytest.mark.parametrize(
    "broken",
    [
        *("{", "}", "a_b", "50%", "$1", "#", "~", "x^2", "a & b", "{$}$", "\u00e9"),
        *(
            "a \\\\ [b]",
            r"\begin{table}",
            r"\end{table}",
            r"\begin{tabular}{ll} a & b & c \\ \end{tabular}",
        ),
    ],
)
def test_the_latex_check_finds_faults(broken):
    with pytest.raises((AssertionError, IndexError)):
        check_latex(broken)


def test_latex_is_well_formed(doc, hostile):
    for each in (doc, hostile):
        check_latex(render(each, "latex"))


def test_no_latex_row_starts_with_a_bracket_or_star(hostile):
    # LaTeX takes a bracket or star after a row end as its argument, even on the next line.
    lines = render(hostile, "latex").splitlines()
    assert [line for line in lines if line.startswith(("[", "*"))] == []
    assert any(line.startswith("{}[x] &") for line in lines)


def test_latex_spells_every_special_character():
    doc = make_study({"%_&#$~^\\{}<>|---": [0.5]})
    spelled = "".join(LATEX[c] for c in "%_&#$~^\\{}<>|") + "-{}-{}-"
    assert f"\n{spelled} & 305,002 &" in render(doc, "latex")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(doc, hostile, tmp_path):
    body = "\n\n".join(render(each, "latex") for each in (doc, hostile))
    packages = "\\usepackage{booktabs,graphicx}"
    page = f"\\documentclass{{article}}{packages}\\begin{{document}}\n{body}\n\\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG
    )
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")


result = st.one_of(st.floats(0, 1), st.sampled_from(get_args(State)[1:]))


@settings(max_examples=60, deadline=None)
@given(
    rows=st.dictionaries(st.text(max_size=8), st.lists(result, max_size=6), min_size=1, max_size=4),
    same_setting=st.booleans(),
    has_source=st.booleans(),
)
def test_every_mix_renders_in_every_format(rows, same_setting, has_source):
    reference = make_reference(dict.fromkeys(rows, 50.0)) if has_source else None
    doc = make_study(rows, same_setting=same_setting, reference=reference)
    for form in FORMATS:
        assert render(doc, form)
    check_latex(render(doc, "latex"))
    Page(render(doc, "html"))
    for row, found in zip(cells(doc), compare(doc), strict=True):
        assert row["n"] == str(found.n)
        if found.num_unfinished:
            assert f"of {len(rows[row['variant']])} " in row["not finished"]
