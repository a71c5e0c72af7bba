"""The page of `vitcli visualize` in a real browser: figures load and both explorers work."""

import pytest
from typer.testing import CliRunner

from tests.browser.chromium import chromium
from vitcli.cli.main import app
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train.start import Request, start

pytestmark = pytest.mark.browser
CLS = {"train.epochs": 1, "model.pool": "cls", "model.pos_embed": "learned"}


@pytest.fixture
def page(tiny, here):
    """Write a page with two explorers: a run with CLS and a run without."""
    names = []
    for name, changes in (("one", CLS), ("two", {"train.epochs": 1})):
        request = Request(output=here / "runs" / name)
        names.append(str(start(load_experiment(str(tiny), changes), request).run.path))
    words = ["visualize", *names, "--what", "curves,distance,explorer", "--num-images", "4"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return here / "figures" / "index.html"


def test_the_page_is_complete_without_messages_and_no_wider_than_a_phone(page, tmp_path):
    with chromium(tmp_path / "profile") as browser:
        for options in ({}, {"dark": True, "size": (360, 800), "phone": True}):
            shown = browser.open(page.as_uri(), **options)
            shown.wait(
                "[...document.querySelectorAll('.explorer')].length === 2 &&"
                " [...document.querySelectorAll('.explorer')].every(e => e.dataset.values)"
            )
            assert shown.console_messages() == []
            assert shown.requests() == []
            sizes = shown.evaluate(
                "[...document.querySelectorAll('figure img')].map(image => image.naturalWidth)"
            )
            assert len(sizes) == 4
            assert min(sizes) > 100
            assert shown.overflow() <= 0
            shown_sizes = shown.evaluate(
                "[...document.querySelectorAll('figure img')].map(image => image.clientWidth)"
            )
            assert min(shown_sizes) > 600, "text of a figure in its usual size; the figure scrolls"
            ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(255, 255, 255)") is not bool(options)
        shown.print_on(718)
        assert shown.overflow() <= 0
        ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == "rgb(255, 255, 255)", "paper is white, also of a dark page"
        clipped = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)"
        assert not shown.evaluate(clipped), "paper does not scroll"


def test_each_explorer_handles_its_own_keys(page, tmp_path):
    views = "[...document.querySelectorAll('.explorer')].map(e => e.dataset.layer + e.dataset.head)"
    with chromium(tmp_path / "profile") as browser:
        shown = browser.open(page.as_uri())
        shown.wait("document.querySelectorAll('.explorer')[1].dataset.values !== undefined")
        before = shown.evaluate(views)
        shown.press("2")
        assert shown.evaluate(views) == before, "no explorer has the focus"
        shown.evaluate("document.querySelectorAll('.explorer')[1].querySelector('.stage').focus()")
        shown.press("2")
        shown.wait(f"({views})[1] === '22'")
        assert shown.evaluate(views)[0] == before[0]
