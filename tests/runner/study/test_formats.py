"""The table of a study: what it says, and that it is well formed in every format."""

import csv
import io
import json
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings

from tests.fabricated_study import (
    make_hostile_study,
    make_reference,
    make_row,
    make_study,
    make_trial,
)
from tests.patience import HANG
from tests.runner.study.tables import ROWS, SOURCE, Page, cell, cells, studies
from vitcli.runner.errors import InputError
from vitcli.runner.study.result import Candidate, StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import FORMATS, build, read_document, render
from vitcli.runner.tables import LATEX
from vitcli.runner.text import signed

DOC, HOSTILE = make_study(ROWS, reference=make_reference(SOURCE)), make_hostile_study()
DIFFERENCE = "difference [95 % CI]"


def all_notes(doc: StudyResult) -> str:
    return "\n".join(build(doc).notes)


def test_rows_without_native_kernels_are_said_to_be_slower():
    for kernels in (("native",), ("torch",), ("native", "torch")):
        text = all_notes(DOC.replace(kernels=kernels))
        assert ("own part" in text) == (len(kernels) == 2)


def test_incomplete_rows_name_their_open_trials():
    assert cell(DOC, "single-head", "not finished") == "2 of 3 missing"
    assert cell(DOC, "wide", "not finished") == "1 of 3 failed, 2 running"
    assert cell(DOC, "wide", "accuracy, %") == "no result yet"
    assert cell(DOC, "no-residual", "diverged") == "1 of 3"
    assert cell(DOC, "no-layernorm", "accuracy, %") == "diverged"
    assert cell(DOC, "no-ffn", "training time per trial") == "32 s"
    assert cell(DOC, "baseline", "not finished") == ""
    mixed = make_study({"base": ["diverged", "diverged", "missing"]})
    assert cell(mixed, "base", "accuracy, %") == "no result yet"


def test_p_of_many_pairs_is_drawn():
    many = make_study({"base": [0.9, 0.91] * 9, "less": [0.8, 0.82] * 9})
    assert "99,999 draws" in all_notes(many)


def test_a_difference_shows_its_number_of_pairs_if_it_is_not_n():
    assert cell(DOC, "single-head", DIFFERENCE) == "\u22120.10 (1 pair)"
    rows = {"base": [0.9, "failed", 0.9, 0.9], "less": [0.8] * 4, "none": ["failed", 0.8, "stale"]}
    minus = "\u221210.00"
    whole = f"{minus} [{minus}, {minus}] (3 pairs)"
    assert [row[DIFFERENCE] for row in cells(make_study(rows))] == ["baseline", whole, "no pair"]


def test_a_source_in_the_same_setting_has_its_parameters_and_hours():
    reference = make_reference({"base": 90.0}, parameters=5.7e6, hours=1.5)
    doc = make_study({"base": [0.9], "less": [0.8]}, reference=reference, same_setting=True)
    assert "direction only" not in cells(doc)[0]
    assert cell(doc, "base", "source's parameters") == "5,700,000"
    assert [row["source's hours"] for row in cells(doc)] == ["1.5", ""]


def test_a_tuned_study_shows_the_chosen_setting():
    settings = [Candidate(setting={"optim.lr": lr}, val_accuracy=0.5) for lr in (0.001, 0.01)]
    tuned = make_row("base", [0.9]).replace(candidates=tuple(settings), chosen={"optim.lr": 0.01})
    open_ = make_row("less", ["missing"]).replace(candidates=tuple(settings))
    doc = make_study({}, rows=(tuned, open_), num_comparisons=1)
    assert [row["chosen setting"] for row in cells(doc)] == ["lr=0.01", "not chosen yet"]


def test_notes_count_the_compute_of_teachers_and_of_shared_pre_trainings():
    def noted(first: dict[str, float], own: str = "", **costs: float) -> str:
        """Return the notes of two rows of three trials; ``first`` are the costs of the first."""
        rows = []
        for name in ("base", "less, more"):
            measured = [first, costs, costs]
            trials = [t.replace(train_seconds=1800.0, measured=each)
                      for t, each in zip(DOC.rows[0].trials, measured, strict=True)]  # fmt: skip
            changes = {"task.teacher": name + own}
            row = DOC.rows[0].replace(variant=name, trials=tuple(trials), changes=changes)
            rows.append(row)
        return all_notes(DOC.replace(rows=tuple(rows), threads=2))

    costs = {"train_flops": 2e14, "teacher_flops": 1e14}
    text = noted(costs, **costs)
    assert "1.2 PFLOP (0.6 PFLOP by teachers; their own training is not recorded" in text
    assert "vitcli ablate made-up --only 'less, more' --seeds 0" in text
    costs |= {"teacher_train_flops": 4e12, "pretrain_flops": 1e14, "pretrain_seconds": 1800.0}
    text = noted(costs, **costs)
    assert "6 trainings, 1.5 PFLOP" in text, "each pre-training is shared by two trials"
    assert "their own training took 8 TFLOP more), 9 core hours" in text
    assert "their own training took 0.024 PFLOP more)" in noted(costs, "/seed{seed}", **costs)
    assert "6 trainings, 6 core hours." in noted({}, train_flops=2e14)


def test_notes_name_the_rows_that_stop_early():
    base, *others = DOC.rows
    early = others[0].replace(changes={"train.early_stopping": 2})
    text = all_notes(DOC.replace(rows=(base, early)))
    assert f"after the last epoch, and of {early.variant} with the weights of the best" in text


def test_the_speed_of_a_model_is_the_median_over_its_trials():
    speeds = enumerate((1000.0, 1500.0, 4000.0))
    trials = tuple(make_trial(seed, 0.5, images_per_second=speed) for seed, speed in speeds)
    swin = make_row("swin", [], trials=trials, changes={"model.family": "swin"})
    doc = make_study({}, rows=(make_row("vit", [0.6]), swin))
    assert cell(doc, "swin", "images/s") == "1,500"


def test_differences_have_a_sign():
    values = (-8.7, 2.4, -0.001, 0.0, None)
    assert [signed(value, 2) for value in values] == ["\u22128.70", "+2.40", "0.00", "0.00", ""]


def test_each_format_writes_its_own_signs():
    # no-ffn: -6.4, -6.6, -6.2, so -6.40 +- 4.303 * 0.2 / sqrt(3).
    assert re.search(r"86.70 \+- 0.10 +-6.40 \[-6.90, -5.90\]", render(DOC, "text"))
    assert r"86.70 +- 0.10 | -6.40 [-6.90, -5.90] |" in render(DOC, "md")
    assert r"86.70 $\pm$ 0.10 & $-$6.40 [$-$6.90, $-$5.90]" in render(DOC, "latex")
    assert '&plusmn; 0.10</td><td class="number">&minus;6.40 [&minus;6.90' in render(DOC, "html")


@pytest.mark.parametrize("text", ["{", "3", '{"name": "x"}', "[" * 100_000, "\0"])
def test_other_files_are_refused_in_one_line(text):
    with pytest.raises(InputError) as error:
        read_document(text)
    assert "\n" not in str(error.value)


def test_csv_and_json_hold_the_statistics():
    rows = list(csv.DictReader(io.StringIO(render(DOC, "csv"))))
    stored = json.loads(render(DOC, "json"))["statistics"]
    assert [row["variant"] for row in rows] == [row["variant"] for row in stored] == list(ROWS)
    for row, other, found in zip(rows, stored, compare(DOC), strict=True):
        for name in ("score_mean", "score_sd", "difference", "ci_low", "ci_high", "p_holm"):
            value = getattr(found, name)
            name = name.replace("score", "accuracy")
            assert row[name] == ("" if value is None else str(round(value, 6)))
            assert other[name] == (None if value is None else round(value, 6))
        assert int(row["n"]) == found.n
    assert (rows[0]["seeds_missing"], rows[0]["parameters"]) == ("", "305002")


def test_text_is_printable_ascii_of_a_bounded_width():
    for each in (DOC, HOSTILE):
        assert render(each, "text").isascii()
        assert all(line.isprintable() for line in render(each, "text").split("\n"))
    assert max(map(len, render(DOC, "text").splitlines())) <= 160


def test_markdown_rows_have_equal_columns_and_readable_names():
    for each in (DOC, HOSTILE):
        lines = [line for line in render(each, "md").splitlines() if line.startswith("|")]
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines}
        assert bars == {len(build(each).columns) + 1}
        assert len(lines) == len(each.rows) + 2
    names = {"no_ffn": "no_ffn", "_x_ <b>": r"\_x\_ \<b\>", "[a](b)": r"[a\](b)"}
    text = render(make_study({name: [0.5] for name in names}, question=""), "md")
    assert all(f"| {name} |" in text for name in names.values())


def test_html_has_the_cells_of_the_table():
    for each in (DOC, HOSTILE):
        table, page = build(each), Page(render(each, "html"))
        heads = [column.header for column in table.columns]
        for row, wanted in zip(page.rows, [heads, *table.rows], strict=True):
            assert row == [" ".join(re.sub(r"\x1b", " ", text).split()) for text in wanted]
        scopes = [value for _, name, value in page.attributes if name == "scope"]
        assert scopes == ["col"] * len(heads) + ["row"] * len(each.rows)


def test_latex_escapes_special_characters_and_starts_of_rows():
    doc = make_study({"%_&#$~^\\{}<>|---": [0.5]})
    spelled = "".join(LATEX[c] for c in "%_&#$~^\\{}<>|") + "-{}-{}-"
    assert f"\n{spelled} & 305,002 &" in render(doc, "latex")
    # LaTeX takes a bracket or star after a row end as its argument, even on the next line.
    lines = render(HOSTILE, "latex").splitlines()
    assert [line for line in lines if line.startswith(("[", "*"))] == []
    assert all(line.isascii() for line in lines)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    body = "\n\n".join(render(each, "latex") for each in (DOC, HOSTILE))
    packages = "\\usepackage{booktabs,graphicx}"
    page = f"\\documentclass{{article}}{packages}\\begin{{document}}\n{body}\n\\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=HANG
    )
    assert done.returncode == 0, done.stdout[-2000:].decode(errors="replace")


@settings(max_examples=12, deadline=None)
@given(studies())
def test_every_mix_renders_in_every_format(doc):
    again = read_document(render(doc, "json"))
    assert again == doc
    for form in FORMATS:
        text = render(doc, form)
        assert text == render(again, form) == text.rstrip("\n") != ""
    Page(render(doc, "html"))
    for row, own, found in zip(cells(doc), doc.rows, compare(doc), strict=True):
        assert row["n"] == str(found.n)
        if found.num_unfinished:
            assert f"of {len(own.trials)} " in row["not finished"]
