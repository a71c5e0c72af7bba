"""Tables and lines that fit a terminal, with every word and number in one piece."""

import re

import pytest

from tests.fabricated_study import make_reference, make_study
from vitcli.runner.columns import TextColumn, lay_out, make_column, narrow, wrap, wrap_line
from vitcli.runner.study.table import build, render
from vitcli.runner.text import quantity, shorten

WIDTHS = (40, 60, 80, 100, 120)
LONG = "no-positional-encoding-and-a-name-of-fifty-letters"
SCORES = {
    "baseline": (0.9312, 0.9288, 0.9301),
    LONG: (0.8412, 0.8388, "missing"),
    "no-ffn": ("diverged", 0.8012, "diverged"),
    "single-head": ("failed", "failed", "interrupted"),
}


def study():
    """A study with all kinds of notes: diverged, missing and failed trials, and a source."""
    return make_study(
        SCORES,
        question="what does each part of the model contribute to its accuracy on these pictures?",
        reference=make_reference({"baseline": 93.1, LONG: 84.4}, parameters=5.7e6, hours=4.5),
    )


def words(text: str) -> list[str]:
    return [word for word in text.split() if set(word) != {"-"}]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_study_fits_and_keeps_every_word_and_every_cell(width):
    text = render(study(), "text", width)
    name = shorten(LONG, width)
    lines = [line for line in text.splitlines() if "vitcli " not in line]
    assert max(map(len, lines)) <= width
    table = build(study())
    everything = " ".join([table.caption, *table.notes, *(c.header for c in table.columns)])
    known = {*words(render(study(), "text")), *words(everything), name}
    assert set(words(text)) <= known, "a word is broken"
    for row in table.rows:
        for cell in row[1:]:
            ascii_cell = cell.replace("\u2212", "-").replace("\u00b1", "+-")
            assert set(ascii_cell.split()) <= set(words(text))
    for interval in re.findall(r"\[[^\]]+\]", render(study(), "text")):
        assert interval in text, "an interval is broken"


def test_without_a_width_a_row_is_one_line():
    names = [line.split()[0] for line in render(study(), "text").splitlines()]
    assert [name for name in names if name in SCORES] == list(SCORES)
    assert max(map(len, render(study(), "text").splitlines())) > 150


@pytest.mark.parametrize("width", WIDTHS)
def test_each_note_is_printed_once(width):
    notes = build(study()).notes
    flat = " ".join(render(study(), "text", width).split()).replace("- ", "-")
    for note in notes:
        start = note.replace("\u00b1", "+-")[:30]
        assert flat.count(" ".join(start.split()).replace("- ", "-")) == 1, start


def columns(*cells: str) -> list[TextColumn]:
    """A table of one row; the headers are a, b, c ..."""
    return [make_column(chr(97 + i), [cell], right=i > 0, limit=0) for i, cell in enumerate(cells)]


def lines(*cells: str, width: int) -> list[list[str]]:
    return [[*block.head, *block.body] for block in lay_out(columns(*cells), width)]


def test_a_table_is_one_block_as_long_as_it_fits():
    assert lines("name", "11", "22", width=12) == [["a      b   c", "name  11  22"]]


def test_columns_that_do_not_fit_follow_below_with_the_name():
    first, second = lines("name", "11111", "22222", width=11)
    assert first == ["a         b", "name  11111"]
    assert second == ["a         c", "name  22222"]


def test_a_long_name_stands_above_its_cells_if_this_saves_a_block():
    assert lines("a-long-name", "11", "22", width=12) == [
        ["a", "   b   c", "a-long-name", "  11  22"]
    ]


def test_only_a_name_longer_than_the_line_is_shortened_and_keeps_both_ends():
    assert lines("the-long-name", "11", width=12)[0][2] == "the-l...name"
    assert lines("the-long-name", "11", width=13)[0][2] == "the-long-name"


def test_words_wrap_in_their_column_before_columns_move():
    def make(limit):
        cells = ("name", "three short words here and more of them")
        return [make_column("h", [c], right=False, limit=limit * i) for i, c in enumerate(cells)]

    (block,) = lay_out(narrow(make, 30), 30)
    assert block.body == ["name  three short words here", "      and more of them"]


@pytest.mark.parametrize(
    ("line", "wrapped"),
    [
        ("fits", "fits"),
        ("mean      0.50, 0.51, 0.52", "mean      0.50, 0.51,\n          0.52"),
        ("  share   of the test 9.8 %", "  share   of the test\n          9.8 %"),
        ("hash      0123456789abcdef", "hash\n    0123456789abcdef"),
        ("a note of some length that wraps", "a note of some length\n  that wraps"),
        ("a long sentence; then  type: this", "a long sentence; then\n  type: this"),
        ("/home/me/one/very/long/name.jpg  b", "/home/me/one/very/long/name.jpg\n  b"),
        (" " * 20 + "far to the right", "far to the right"),
        ("type: vitcli train mine", "type:\n  vitcli train mine"),
        ("mean --data 'my photos'?", "mean --data\n  'my photos'?"),
        ("the model's one and the users' own", "the model's one and\n  the users' own"),
    ],
)
def test_a_line_wraps_between_words_and_its_value_keeps_its_column(line, wrapped):
    assert wrap_line(line, 22) == wrapped


def test_no_limit_is_one_line():
    assert wrap("a b " * 100, 0) == [("a b " * 100).strip()]


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "epoch", "1 epoch"),
        (3, "epoch", "3 epochs"),
        (0, "seed", "0 seeds"),
        (2, "class", "2 classes"),
        (2, "batch", "2 batches"),
        (2000, "test image", "2,000 test images"),
    ],
)
def test_a_number_has_its_noun(number, noun, text):
    assert quantity(number, noun) == text
