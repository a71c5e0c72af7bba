"""The table of a study is well formed in every format."""

import csv
import io
import json
import re
import shutil
import subprocess
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fabricated_study import make_reference, make_study
from tests.patience import HANG
from tests.runner.study.tables import ROWS, Page, cells
from vitcli.runner.errors import InputError
from vitcli.runner.study.formats import LATEX
from vitcli.runner.study.result import State
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import FORMATS, build, read_document, render


def test_each_format_writes_its_own_signs(doc):
    # no-ffn: -6.4, -6.6, -6.2, so -6.40 +- 4.303 * 0.2 / sqrt(3).
    assert re.search(r"86.70 \+- 0.10 +-6.40 \[-6.90, -5.90\]", render(doc, "text"))
    assert r"86.70 +- 0.10 | -6.40 [-6.90, -5.90] |" in render(doc, "md")
    assert r"86.70 $\pm$ 0.10 & $-$6.40 [$-$6.90, $-$5.90]" in render(doc, "latex")
    assert '&plusmn; 0.10</td><td class="number">&minus;6.40 [&minus;6.90' in render(doc, "html")


def test_the_same_document_gives_the_same_bytes(doc, hostile):
    for each in (doc, hostile):
        again = read_document(render(each, "json"))
        assert again == each
        for form in FORMATS:
            text = render(each, form)
            assert text == render(again, form)
            assert text == text.rstrip("\n")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"name": "x"}', "[" * 100_000, "\0"])
def test_other_files_are_refused_in_one_line(text):
    with pytest.raises(InputError) as error:
        read_document(text)
    assert "\n" not in str(error.value)


def test_csv_and_json_hold_the_statistics(doc):
    rows = list(csv.DictReader(io.StringIO(render(doc, "csv"))))
    stored = json.loads(render(doc, "json"))["statistics"]
    assert [row["variant"] for row in rows] == [row["variant"] for row in stored] == list(ROWS)
    for row, other, found in zip(rows, stored, compare(doc), strict=True):
        for name in ("score_mean", "score_sd", "difference", "ci_low", "ci_high", "p_holm"):
            value = getattr(found, name)
            name = name.replace("score", "accuracy")
            assert row[name] == ("" if value is None else str(round(value, 6)))
            assert other[name] == (None if value is None else round(value, 6))
        assert int(row["n"]) == found.n
    assert (rows[0]["seeds_missing"], rows[0]["parameters"]) == ("", "305002")


def test_text_is_printable_ascii_of_a_bounded_width(doc, hostile):
    for each in (doc, hostile):
        assert render(each, "text").isascii()
        assert all(line.isprintable() for line in render(each, "text").split("\n"))
    assert max(map(len, render(doc, "text").splitlines())) <= 160


def test_markdown_rows_have_equal_columns_and_readable_names(doc, hostile):
    for each in (doc, hostile):
        lines = [line for line in render(each, "md").splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert bars == {len(build(each).columns) + 1}
        assert len(lines) == len(each.rows) + 2
    names = {"no_ffn": "no_ffn", "_x_ <b>": r"\_x\_ \<b\>", "[a](b)": r"[a\](b)"}
    text = render(make_study({name: [0.5] for name in names}, question=""), "md")
    assert all(f"| {name} |" in text for name in names.values())


def test_html_has_the_cells_of_the_table(doc, hostile):
    for each in (doc, hostile):
        table, page = build(each), Page(render(each, "html"))
        heads = [column.header for column in table.columns]
        for row, wanted in zip(page.rows, [heads, *table.rows], strict=True):
            assert row == [" ".join(re.sub(r"\x1b", " ", text).split()) for text in wanted]
        scopes = [value for _, name, value in page.attributes if name == "scope"]
        assert scopes == ["col"] * len(heads) + ["row"] * len(each.rows)


def test_latex_escapes_special_characters_and_starts_of_rows(hostile):
    doc = make_study({"%_&#$~^\\{}<>|---": [0.5]})
    spelled = "".join(LATEX[c] for c in "%_&#$~^\\{}<>|") + "-{}-{}-"
    assert f"\n{spelled} & 305,002 &" in render(doc, "latex")
    # LaTeX takes a bracket or star after a row end as its argument, even on the next line.
    lines = render(hostile, "latex").splitlines()
    assert [line for line in lines if line.startswith(("[", "*"))] == []
    assert any(line.startswith("{}[x] &") for line in lines)
    assert all(line.isascii() for line in lines)


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


@settings(max_examples=40, deadline=None)
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
    Page(render(doc, "html"))
    for row, found in zip(cells(doc), compare(doc), strict=True):
        assert row["n"] == str(found.n)
        if found.num_unfinished:
            assert f"of {len(rows[row['variant']])} " in row["not finished"]
