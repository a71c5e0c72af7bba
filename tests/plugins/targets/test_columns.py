"""The columns ``labels`` and ``target``: what cells mean, what is refused where, and the splits."""

import json
import shlex
import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.commands import document, said, typed, vitcli
from tests.plugins.targets.conftest import write_table
from vitcli.core.data.source import DataSet
from vitcli.core.spec import DataSpec
from vitcli.runner.data.load import load_data
from vitcli.runner.errors import InputError

NUMBERS = ("1.5", "-2", "+3e2", ".25", "7", "0")
CELLS = {
    ("cat;dog", "dog | bird", "cat"): ({"cat", "dog"}, {"dog", "bird"}, {"cat"}),
    ('["a;b", "c"]', "", "c"): ({"a;b", "c"}, set(), {"c"}),
    (" 10;9;", "9", ";2"): ({"10", "9"}, {"9"}, {"2"}),  # numbers, blanks and empty parts
    ("10.0;9.5", "9.5", "-2"): ({"10.0", "9.5"}, {"9.5"}, {"-2"}),
}
ORDERS = ("bird", "cat", "dog"), ("a;b", "c"), ("2", "9", "10"), ("-2", "9.5", "10.0")


@pytest.fixture
def table(here):
    """Return a function that writes pictures and a table with cells of a column, twice each.

    The second half has the split test.
    """

    def write(column: str, cells: tuple[str, ...]) -> str:
        rng, rows = np.random.default_rng(0), [("path", column, "split")]
        for row, cell in enumerate(2 * cells):
            name, split = f"{row}.png", "train" if row < len(cells) else "test"
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(name)
            rows.append((name, cell, split))
        return f"csv:{write_table(here / 'table.csv', rows)}"

    return write


@pytest.mark.parametrize(("cells", "names"), [*zip(CELLS, ORDERS, strict=True)])
def test_a_cell_is_a_set_of_labels(table, cells, names):
    name = table("labels", cells)
    for _ in range(2):  # the second time from the cache
        data = load_data(DataSpec(name=name))
        assert data.class_names == names
        for images in (data.train, data.test):
            found = dict(zip(images.names, images.extra["label_set"], strict=True))
            for row, wanted in enumerate(2 * CELLS[cells]):
                if f"{row}.png" in found:
                    has = found[f"{row}.png"].bool()
                    assert {names[k] for k in has.nonzero().flatten()} == wanted


def test_a_target_is_a_number(table):
    data = load_data(DataSpec(name=table("target", NUMBERS)))
    found = dict(zip(data.train.names, data.train.extra["target"][:, 0].tolist(), strict=True))
    assert [found[f"{row}.png"] for row in range(len(NUMBERS))] == [1.5, -2, 300, 0.25, 7, 0]
    assert data.class_names == ("target",)


BAD = {
    ("labels", '["a", 3]'): "line 3: labels '[\"a\", 3]' are no JSON list of names",
    ("labels", '{"choices": ["a"]}'): 'line 3: labels \'{"choices": ["a"]}\' are no names',
    ("labels", 'c("a", "b")'): 'line 3: labels \'c("a", "b")\' are no names; write |',
    ("labels", '["a"'): "line 3: labels '[\"a\"' are no JSON list",
    ("target", "old"): "line 3: the target 'old' is no finite number",
    ("target", "nan"): "line 3: the target 'nan' is no finite number",
    ("target", "-inf"): "line 3: the target '-inf' is no finite number",
    ("target", "1e39"): "line 3: the target '1e39' is too large",
    ("target", "1,5"): "line 3: the target '1,5' is no finite number; write it as 1234.5, no comma",
    ("target", ""): "line 3: the target is empty; write a number, or remove the line",
}


@pytest.mark.parametrize(("column", "cell"), BAD)
def test_a_bad_cell_is_one_line_with_its_place(table, column, cell):
    talk = said(4, "data", "info", table(column, ("1", cell, "2")))
    assert f"table.csv, {BAD[column, cell]}" in talk
    assert len(talk.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cat,dog", "cat|dog"),
        ("cat, ice bear", "cat|ice bear"),
        ("cat/dog", "cat|dog"),
        ("cat dog", "cat|dog"),
        ("{cat,dog}", "cat|dog"),
        ("('cat', 'dog')", "cat|dog"),
        ('("ice bear",)', "ice bear"),
        ("bird;cat,dog", "bird|cat|dog"),
        ("hot  dog", "hot|dog"),
        ("{cat}", "cat"),
        ("cat,ant", None),  # there is no ant
        ("A+", None),
        ('["cat,dog"]', None),
    ],
)
def test_labels_that_another_sign_joins_are_asked_about_and_the_advice_works(table, text, parts):
    cells = ("cat;dog", "ice bear;A", "hot;bird", text)
    if parts is None:
        assert len(load_data(DataSpec(name=table("labels", cells))).class_names) == 7
        return
    talk = said(4, "data", "info", table("labels", cells))
    assert "table.csv, line 5: which labels are in " in talk
    assert len(talk.strip().splitlines()) == 1
    _, _, advice = talk.strip().partition("? Write ")
    split, one = advice.split(", or ")
    assert split == parts
    for cell in (split, one):
        load_data(DataSpec(name=table("labels", (*cells[:3], cell))))


@pytest.mark.parametrize("sign", [" ", ",", ", "])
def test_words_that_are_never_alone_are_asked_about_if_no_cell_is_a_list(table, sign):
    words, places = ("haze", "clear", "dim"), ("primary", "road")
    tags = (*(f"{word} {place}" for place in places for word in words), "")
    cells = tuple(tag.replace(" ", sign) for tag in tags)
    talk = said(4, "data", "info", table("labels", cells))
    assert f"line 2: which labels are in '{cells[0]}'? Write haze|primary, or" in talk
    data = load_data(DataSpec(name=table("labels", (json.dumps(cells[:1]), *cells[1:]))))
    assert len(data.class_names) == 6
    assert load_data(DataSpec(name=table("labels", tags[:2]))).class_names == (tags[1], tags[0])


def test_a_list_with_commas_without_quotes_is_told_the_sign_between_labels(table, here):
    name, path = table("labels", ("cat", "dog")), here / "table.csv"
    path.write_text(path.read_text().replace("cat", "cat,dog", 1))
    assert "line 2: 4 cells, but the header has 3" in (talk := said(4, "data", "info", name))
    assert talk.strip().endswith("in quotes, but write | between labels")


@pytest.mark.parametrize(
    ("targets", "sign", "unclear"),
    [
        (("968", "1.108", "996", "1.004"), ";", "1.108"),
        (("968", "1.108", "996", "1.004"), "\t", "1.108"),
        (("968", "-2.034.500", "1.108"), ";", None),  # no number at all
        (("8.034", "8.122", "7.996"), ";", "8.034"),
        (("968", "1.108", "996", "1.004"), ",", None),
        (("968", "1.108", "0.5"), ";", None),
        (("8.034", "8.122", "7.996"), "\t", None),
    ],
)
def test_a_sign_between_thousands_is_asked_about_and_the_advice_works(
    table, here, targets, sign, unclear
):
    name = table("target", targets)
    path, text = here / "table.csv", (here / "table.csv").read_text()
    path.write_text(text.replace(",", sign))
    if unclear:
        line = 2 + targets.index(unclear)
        talk = said(4, "data", "info", name)
        wanted = f"table.csv, line {line}: has the target '{unclear}' a sign between thousands?"
        assert f"{wanted} Write {unclear.replace('.', '')}," in talk
        path.write_text(text)  # commas between the cells
    if "-2.034.500" in targets:
        assert "'-2.034.500' is no finite number" in said(4, "data", "info", name)
        return
    numbers = load_data(DataSpec(name=name)).train.extra["target"][:, 0]
    assert sorted(numbers.tolist()) == pytest.approx(sorted(map(float, targets)))


def test_tables_that_say_too_little_or_too_much_are_refused(table, here):
    name = table("labels", ("", "", ""))
    with pytest.raises(InputError, match="no training picture has a label"):
        load_data(DataSpec(name=name))
    path, text = here / "table.csv", (here / "table.csv").read_text()
    path.write_text(text.replace("0.png,", "0.png,cat").replace("5.png,", "5.png,cats"))
    wanted = "line 7: no training picture has the class 'cats'; did you mean 'cat'"
    with pytest.raises(InputError, match=wanted):
        load_data(DataSpec(name=name))
    write_table(path, [("path", "labels", "target"), ("0.png", "a", "1")])
    with pytest.raises(InputError, match=r"line 1: columns label.* keep one of them"):
        load_data(DataSpec(name=name))
    rows = [(f"{row}.png", "ab"[row % 2], "x;y", 3) for row in range(6)]
    write_table(path, [("path", "label", "labels", "target"), *rows])
    notes: list[str] = []
    data = load_data(DataSpec(name=name), on_message=notes.append)
    assert (data.class_names, dict(data.train.extra)) == (("a", "b"), {})
    assert "table.csv: not used: labels, target" in notes


def test_rare_labels_are_on_both_sides_of_each_split(colours):
    rows = [line.split(",")[:2] for line in (colours / "labels.csv").read_text().splitlines()]
    whole = colours / "whole.csv"
    write_table(whole, rows)
    spec = DataSpec(name=f"csv:{whole}", val_split=0.25)
    data = load_data(spec)
    assert data.val
    total = sum(part.extra["label_set"].sum(0) for part in (data.train, data.test, data.val))
    for images, share in ((data.train, 0.6), (data.test, 0.2), (data.val, 0.2)):
        counts = images.extra["label_set"].sum(0)
        assert ((counts - share * total).abs() <= torch.tensor([1.5, 5, 8])).all(), counts
    parts = [load_data(spec.replace(val_split=0, folds=4), seed=seed).test for seed in range(4)]
    assert sorted(name for part in parts for name in part.names) == sorted(n for n, _ in rows[1:])
    rare = [part.extra["label_set"][:, 0].sum() for part in parts]
    assert max(rare) - min(rare) <= 1
    found = document("data", "info", f"csv:{colours / 'labels.csv'}")
    checked = document("data", "check", f"csv:{colours / 'labels.csv'}")
    for said_of in (found, checked):
        assert [row["train"] + row["test"] for row in said_of["classes"]] == total.tolist()


@pytest.mark.parametrize("copy", [("cat", "test"), ("dog", "val")])
def test_what_data_check_says_to_type_can_be_typed(table, here, copy):
    """A copy that has the only label of the test pictures, or that no training reads."""
    name = table("labels", ("cat", "dog", "dog", "cat"))
    lines = [f"{row}.png,{text},train" for row, text in enumerate(("cat", "dog", "dog", "cat"))]
    lines += ["4.png,,test", "5.png,dog,val"] + ["6.png,cat,test"] * (copy[1] == "val")
    shutil.copy("0.png", "copy.png")
    lines = ["path,labels,split", *lines, f"copy.png,{','.join(copy)}"]
    Path("table.csv").write_text("\n".join(lines))
    following = json.loads(vitcli("data", "check", name, "--leave-out", "copies.csv", "--json")[1])
    assert Path("copies.csv").exists() == (copy[1] == "val")
    typed(f"{following['next'][0].removeprefix('vitcli ')} --dry-run")


def test_corrections_change_lists_and_numbers(colours, here):
    rows = [("file", "label"), ("0.png", "blue;red"), ("1.png", ""), ("2.png", "[]")]
    write_table(here / "mine.csv", rows)
    spec = DataSpec(name=f"csv:{colours / 'labels.csv'}", corrections="mine.csv")
    before, after = load_data(spec.replace(corrections=None)), load_data(spec)
    assert len(after.train) == len(before.train) - 1

    def labels(data: DataSet) -> dict[str, list[int]]:
        pairs = (
            zip(p.names, p.extra["label_set"].tolist(), strict=True)
            for p in (data.train, data.test)
        )
        return dict(chain(*pairs))

    sets = labels(before), labels(after)
    changed = {name for name in sets[1] if sets[0][name] != sets[1][name]}
    assert changed <= {"0.png", "2.png"}
    assert (sets[1]["0.png"], sets[1]["2.png"]) == ([1, 0, 1], [0, 0, 0])
    Path("mine.csv").write_text("file,label\n0.png,purple\n")
    with pytest.raises(InputError, match=r"mine.csv, line 2: no training picture has the class"):
        load_data(spec)
    Path("mine.csv").write_text("file,label\n0.png,12.5\n")
    numbers = load_data(spec.replace(name=f"csv:{colours / 'target.csv'}"))
    place = numbers.train.names.index("0.png")
    assert numbers.train.extra["target"][place].item() == 12.5
    Path("mine.csv").write_text("file;label\n0.png;12.500\n")
    with pytest.raises(InputError, match=r"mine.csv, line 2: has the target '12.500' a sign"):
        load_data(spec.replace(name=f"csv:{colours / 'target.csv'}"))


@pytest.mark.parametrize(
    ("table", "task", "wanted"),
    [
        ("labels", "classify", "has a column 'labels', which only task 'multilabel' reads"),
        ("labels", "regress", "'regress' learns numbers, and csv:"),
        ("target", "multilabel", "has a column 'target', which only task 'regress' reads"),
    ],
)
def test_another_task_does_not_learn_the_strata(colours, here, table, task, wanted):
    name = f"csv:{colours / table}.csv"
    talk = said(2, "train", "--data", name, "-s", f"task.name={task}", "--name", "run")
    assert wanted in talk
    assert "Traceback" not in talk


@pytest.mark.plugin("choose", "data_check")
@pytest.mark.parametrize(("column", "task"), [("labels", "multilabel"), ("target", "regress")])
def test_commands_for_classes_name_the_task_of_a_column(here, colours, column, task):
    table = f"csv:{colours / f'{column}.csv'}"
    assert f"-s task.name={task}" in said(2, "choose", table, "--models", "cifar10-pocket")
    (following,) = document("data", "check", table)["next"]
    assert f"task.name={task}" in following
    said(0, *shlex.split(following)[1:], "--limit-batches", "1", "--dry-run")
