"""The common style of all figures."""

import matplotlib
import pytest
from matplotlib.figure import Figure

from vitcli.runner.figure_style import encode


def draw() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots().set_title("accuracy, %")
    return figure


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_the_settings_of_a_person_change_no_figure(form):
    plain = encode(draw, form)
    own = {"text.usetex": True, "axes.grid": True, "savefig.transparent": True}
    with matplotlib.rc_context(own):
        assert encode(draw, form) == plain
        assert matplotlib.rcParams["text.usetex"] is True, "the person's own figures keep them"
