"""The table of a study in every format: what it says, and that it is well formed."""

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

from tests.fabricated_study import make_hostile_study, make_reference, make_row, make_study
from tests.patience import HANG
from vitcli.runner.errors import InputError
from vitcli.runner.study.formats import LATEX
from vitcli.runner.study.result import Candidate, State, StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import FORMATS, build, read_document, render, signed

ROWS: dict[str, list[float | str]] = {
    "baseline": [0.931, 0.934, 0.928],
    "no-ffn": [0.867, 0.868, 0.866],
    "no-residual": [0.8, "diverged", 0.81],
    "single-head": [0.93, "missing", "missing"],
    "no-layernorm": ["diverged", "diverged", "diverged"],
    "wide": ["failed", "running", "running"],
}
SOURCE = {"baseline": 93.1, "no-ffn": 86.7, "no-residual": 81.0, "single-head": 89.9}


@pytest.fixture(scope="module")
def doc() -> StudyResult:
    return make_study(ROWS, reference=make_reference(SOURCE))


@pytest.fixture(scope="module")
def hostile() -> StudyResult:
    return make_hostile_study()


def cells(doc: StudyResult) -> list[dict[str, str]]:
    table = build(doc)
    heads = [column.header for column in table.columns]
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def cell(doc: StudyResult, variant: str, header: str) -> str:
    return next(row[header] for row in cells(doc) if row["variant"] == variant)


def all_notes(doc: StudyResult) -> str:
    return "\n".join(build(doc).notes)


def test_a_small_table_as_text():
    doc = make_study({"base": [0.90, 0.92, 0.94], "less": [0.86, 0.87, 0.88]}, question="")
    head = render(doc, "text").splitlines()[:8]
    line = "-" * len(head[1])
    assert head == [
        "made-up",
        line,
        "                                                                           training",
        "                                                                           time per",
        "variant  parameters  n    accuracy, %  difference [95 % CI]      p (Holm)     trial",
        line,
        "base        305,002  3  92.00 +- 2.00              baseline                    32 s",
        "less        305,002  3  87.00 +- 1.00  -5.00 [-7.48, -2.52]  3 more seeds      32 s",
    ]


def test_incomplete_rows_name_their_open_trials(doc):
    assert cell(doc, "single-head", "not finished") == "2 of 3 missing"
    assert cell(doc, "wide", "not finished") == "1 of 3 failed, 2 running"
    assert cell(doc, "wide", "accuracy, %") == "no result yet"
    assert cell(doc, "no-residual", "diverged") == "1 of 3"
    assert cell(doc, "no-layernorm", "accuracy, %") == "diverged"
    assert cell(doc, "baseline", "not finished") == ""
    mixed = make_study({"base": ["diverged", "diverged", "missing"]})
    assert cell(mixed, "base", "accuracy, %") == "no result yet"
    assert cell(mixed, "base", "diverged") == "2 of 3"


def test_a_difference_shows_its_number_of_pairs_if_it_is_not_n(doc):
    assert cell(doc, "single-head", "difference [95 % CI]") == "\u22120.10 (1 pair)"
    rows = {"base": [0.9, "failed", 0.9], "less": [0.8, 0.8, 0.8], "none": ["failed", 0.8, "stale"]}
    found = [row["difference [95 % CI]"] for row in cells(make_study(rows))]
    minus = "\u221210.00"
    assert found == ["baseline", f"{minus} [{minus}, {minus}] (2 pairs)", "no pair"]


def test_empty_columns_are_left_out(doc):
    plain = make_study({"base": [0.9], "less": [0.8]})
    own = {"variant", "parameters", "n", "accuracy, %", "difference [95 % CI]", "p (Holm)"}
    own |= {"training time per trial"}
    assert set(cells(plain)[0]) == own
    source = {"source's accuracy, %", "source's drop", "direction only"}
    assert set(cells(doc)[0]) == own | source | {"diverged", "not finished"}
    same = plain.replace(
        reference=make_reference({"base": 90.0}, parameters=5.7e6, hours=1.5), same_setting=True
    )
    more = {"verdict", "source's parameters", "source's hours"}
    assert set(cells(same)[0]) == own | source - {"direction only"} | more
    assert cell(same, "base", "source's parameters") == "5,700,000"
    assert cell(same, "base", "source's hours") == "1.5"
    assert cell(same, "less", "source's hours") == ""


def test_verdicts_are_shown(doc):
    assert cell(doc, "no-ffn", "direction only") == "same"
    assert cell(doc, "no-residual", "direction only") == "diverged"
    assert cell(doc, "single-head", "direction only") == "no interval yet"
    assert cell(doc, "no-layernorm", "direction only") == ""
    assert cell(doc.replace(same_setting=True), "no-ffn", "verdict") == "replicates"


def test_a_tuned_study_shows_the_chosen_setting():
    settings = [Candidate(setting={"optim.lr": lr}, val_accuracy=0.5) for lr in (0.001, 0.01)]
    tuned = make_row("base", [0.9]).replace(candidates=tuple(settings), chosen={"optim.lr": 0.01})
    open_ = make_row("less", ["missing"]).replace(candidates=tuple(settings))
    doc = make_study({}, rows=(tuned, open_), num_comparisons=1)
    assert [row["chosen setting"] for row in cells(doc)] == ["lr=0.01", "not chosen yet"]
    assert "validation split" in all_notes(doc)


def test_p_is_shown_only_for_enough_seeds():
    base = [0.9, 0.91, 0.92, 0.93, 0.9, 0.91]
    rows = {"base": base, "less": [value - 0.1 for value in base]}
    assert cell(make_study(rows), "less", "p (Holm)") == "0.031"
    assert "exact two-sided sign-flip permutation test" in all_notes(make_study(rows))
    few = make_study({"base": base[:5], "less": base[:5]})
    assert cell(few, "less", "p (Holm)") == "1 more seed"
    assert "No test: with 1 comparison, no p-value can" in all_notes(few)
    many = {name: values * 3 for name, values in rows.items()}
    assert "Monte Carlo (99,999 draws, fixed seed" in all_notes(make_study(many))
    assert cell(make_study(many), "less", "p (Holm)") == "< 0.001"


def test_notes_hold_the_method_and_the_environment(doc):
    text = all_notes(doc.replace(dirty=True, commits=("1" * 40, "2" * 40)))
    for fact in (
        "n: number of finished trials",
        "standard deviation over seeds",
        "initialisation, data order and augmentation",
        "last epoch",
        "paired by seed",
        "95 % t interval",
        "Sampling error of the test set",
        "6 epochs on shapes (10,000 training images, hash dddddddddddd)",
        "AMD EPYC, 2 threads; 1 CPU thread per trial; fp32; torch 2.15.0",
        "commit 111111111111, 222222222222; with uncommitted changes; 2026-11-21",
        "A. Author, A Report, section 5",
        "Command: vitcli ablate made-up",
        "look better than it is",
    ):
        assert fact in text
    assert "uncommitted" not in all_notes(doc)
    assert "continued, not bit-identical: base/seed1" in all_notes(
        doc.replace(inexact=("base/seed1",))
    )
    assert "bit-identical" not in all_notes(doc)


def test_rows_of_another_length_are_named():
    doc = make_study({"base": [0.9], "less": [0.8]}, epochs=12)
    assert "12 epochs (but base: 6, less: 6) on shapes" in all_notes(doc)


def test_shortened_epochs_are_named():
    doc = make_study({"base": [0.9]}, base_config={"train.limit_batches": 2})
    assert "Training: 6 epochs of only 2 batches on shapes" in all_notes(doc)


@pytest.mark.parametrize(
    ("value", "text"),
    [(-8.7, "\u22128.70"), (2.4, "+2.40"), (-0.001, "0.00"), (0.0, "0.00"), (None, "")],
)
def test_differences_have_a_sign(value, text):
    assert signed(value, 2) == text


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
    assert max(map(len, lines)) <= 150
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


def test_a_comparison_of_models_shows_what_they_cost(doc):
    swin = make_row("swin", [0.5, 0.6, 0.7], forward_flops=61_234_567)
    speeds = (1000.0, 1500.0, 4000.0)
    trials = [t.replace(images_per_second=s) for t, s in zip(swin.trials, speeds, strict=True)]
    swin = swin.replace(changes={"model.family": "swin"}, trials=tuple(trials))
    rows = (make_row("vit", [0.6, 0.7]), swin)
    compared = doc.replace(rows=tuple(row.model_dump() for row in rows), reference=None)
    assert cell(compared, "swin", "MFLOP per image") == "61.2"
    assert cell(compared, "vit", "MFLOP per image") == ""
    assert cell(compared, "swin", "images/s") == "1,500"
    assert "multiply-add" in all_notes(compared)
    assert "MFLOP" not in render(doc, "text")
