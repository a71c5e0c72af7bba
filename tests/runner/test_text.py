"""Suggestions, tables and lines that fit a terminal, and the common style of figures."""

import matplotlib
import pytest
from matplotlib.figure import Figure

from vitcli.runner.figure_style import encode
from vitcli.runner.report.tables import lay_out, make_table
from vitcli.runner.text import closest, did_you_mean, portable, without_folders

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FIELDS = ["patch_size", "patch_embed", "embed_dim", "depth", "lr", "eps", "layer_norm"]


@pytest.mark.parametrize("word", ["boat", "car", "fog lamp", "zebra", "tuck shop", ""])
def test_nothing_far_fetched_is_suggested(word):
    assert closest(word, CLASSES) is None
    assert did_you_mean(word, CLASSES) == ""


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *(("aeroplane", "airplane"), ("plane", "airplane"), ("hosre", "horse"), ("Ship", "ship")),
        *(("trucks", "truck"), ("patchsize", "patch_size"), ("patch", "patch_size")),
        *(("embed", "embed_dim"), ("layer-norm", "layer_norm"), ("lrs", "lr")),
        ("Layer norm", "layer_norm"),
    ],
)
def test_a_typo_or_a_part_of_a_name_suggests_the_name(word, name):
    assert closest(word, [*CLASSES, *FIELDS]) == name
    assert did_you_mean(word, [*CLASSES, *FIELDS]) == f"; did you mean {name!r}?"


@pytest.mark.parametrize(
    ("shorten", "value", "shown"),
    [
        (portable, "imagefolder:../clients_acme/pets", "imagefolder:pets"),
        (portable, "../../x", "x"),
        (portable, "imagefolder:/home/me/pets", "imagefolder:pets"),
        (portable, "~/pets", "pets"),
        *((portable, value, value) for value in ("shapes", "imagefolder:data/pets", "a..b", 3)),
        (without_folders, "/home/me/acme/a.png: cannot be read", "a.png: cannot be read"),
        (without_folders, "no such file: '../acme/pets/a.png'", "no such file: 'a.png'"),
        *((without_folders, x, x) for x in ["1/2 of a / b and/or c; see https://x.org/a/b"]),
    ],
)
def test_what_is_shared_names_no_folder_outside(shorten, value, shown):
    assert shorten(value) == shown


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_settings_of_a_person_change_no_figure(form):
    def draw() -> Figure:
        figure = Figure(figsize=(2, 2))
        figure.subplots().set_title("accuracy, %")
        return figure

    plain = encode(draw, form)
    own = {"text.usetex": True, "axes.grid": True, "savefig.transparent": True}
    with matplotlib.rc_context(own):
        assert encode(draw, form) == plain
        assert matplotlib.rcParams["text.usetex"] is True, "the person's own figures keep them"


def lines(*cells: str, width: int | None) -> list[str]:
    """A table of one row; the headers are a, b, c ..."""
    header = [chr(97 + i) for i, _ in enumerate(cells)]
    return lay_out(make_table(header, [cells], range(1, len(cells))), width)


def test_a_row_is_aligned_or_wrapped_or_a_list_or_has_a_shortened_word():
    assert lines("name", "11", "22", width=12) == ["a      b   c", "name  11  22"]
    assert lines("name", "11111", "22222", width=11) == ["a", "name", "  b  11111", "  c  22222"]
    shown = lines("a-long-name", "a-longer-word-than-that", width=20)
    assert shown[1:] == ["a-long-name", "  b  a-long...-that"]
    table = make_table(["h", "i"], [["name", "three short words here and [-1.0, 2.0]"]])
    shown = ["h     i", "name  three short words here", "      and [-1.0, 2.0]"]
    assert lay_out(table, 30) == shown
