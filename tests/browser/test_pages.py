"""Promises of every page in a real browser: it fits, is legible, and runs and requests nothing."""

import csv
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser.chromium import TIMEOUT, Page
from tests.cli.commands import said
from tests.conftest import draw_pictures
from tests.fabricated import make_run, make_study_folder
from tests.fabricated_study import HOSTILE, make_reference, make_study
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.page import publish

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("here")]
SCREENS = {
    "light": {},
    "phone": {"size": (360, 780), "phone": True},
    "dark phone": {"size": (360, 780), "phone": True, "dark": True},
}
WIDTHS = (320, 360, 640, 1000, 1280, 1920)
RAN = "document.title='ran'"
ATTACK = f'</script><script>{RAN}</script><img src=x onerror="{RAN}">'
LONG = "northern-flying-squirrel-with-acorn-\u00fcber-" + "x" * 40
WHITE = "rgb(255, 255, 255)"
GROUND = "getComputedStyle(document.body).backgroundColor"
CLIPPED = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)"
SMALL = "[...document.querySelectorAll('figure img')].filter(e => e.clientWidth <= 600).length"


def explorer(copy_of_run) -> Path:
    page = pytest.importorskip("vitcli.plugins.live.page").page
    from tests.plugins.live.scenes import make_model, scene_of

    names = [f"{LONG}{i}" for i in range(100)]
    model = make_model(num_heads=12, depth=4, embed_dim=24, num_classes=100)
    scene = scene_of(model, class_names=names, name=ATTACK)
    return written(page([scene] * 12, about="A long line. " * 20))


def explain(copy_of_run) -> Path:
    page = pytest.importorskip("vitcli.plugins.explain.lesson").page
    from tests.plugins.explain.made_up import bundled, lessons

    return written(page(bundled(), lessons()).encode())


def report(copy_of_run) -> Path:
    names = [*(f"{i}-{LONG}" for i in range(6)), *HOSTILE]
    doc = make_study(dict.fromkeys(names, (0.5, 0.6, 0.7)), reference=make_reference({"x": 1.0}))
    publish(doc, Path().absolute())
    return Path("report.html").absolute()


def runs(copy_of_run) -> Path:
    write_page = pytest.importorskip("vitcli.plugins.page.page").write_page
    make_study_folder({"full/seed0": "finished", "no-ffn/seed0": "diverged"})
    make_run(0, folder=RUNS / "broken").path.joinpath("config.yaml").write_text("a: [")
    make_run(0, folder=RUNS / LONG / ATTACK.replace("/", ""), changes={"model.depth": 6})
    return write_page(RUNS)[0].absolute()


def visualize(copy_of_run) -> Path:
    for plugin in ("distance", "live"):
        pytest.importorskip(f"vitcli.plugins.{plugin}")
    cls = {"train.epochs": 1, "model.pool": "cls", "model.pos_embed": "learned"}
    for name, changes in (("one", cls), ("two", {"train.epochs": 1})):
        copy_of_run(Path(name), changes)
    words = ("--what", "curves,distance,explorer", "--num-images", 4)
    said(0, "visualize", "one", "two", *words)
    return Path("figures/index.html").absolute()


def review(copy_of_run) -> Path:
    copy_of_run(Path("run"), {"train.epochs": 0})
    pictures = draw_pictures(Path().absolute())
    name = f"{LONG}{ATTACK.replace('/', '')}.png"
    shutil.copy(pictures / "train/dark/1.png", pictures / "train/bright" / name)
    said(0, "eval", "run", "--review", "--data-dir", pictures)
    return Path("run/review.html").absolute()


def written(content: bytes) -> Path:
    path = Path("page.html").absolute()
    path.write_bytes(content)
    return path


AXE = Path(os.environ.get("VITCLI_AXE", ""))
"""axe.min.js of axe-core 4.14 (MPL-2.0), the judge of accessibility: ``npm install axe-core``."""
NAMELESS = "empty-table-header"
"""What it says of the report, in which the name of a variant is an empty text."""
FOUND = """axe.run().then(found => found.violations.map(rule =>
  rule.id + ': ' + rule.nodes.map(node => node.target.join(' ')).slice(0, 5).join(', ')))"""
PAGES: tuple[Callable[..., Path], ...] = (explorer, explain, report, runs, visualize, review)


def ready(shown: Page) -> Page:
    shown.wait("[...document.querySelectorAll('.explorer')].every(e => e.dataset.values)")
    return shown


def test_axe_judges_the_pages():
    if not AXE.is_file():
        pytest.skip("no page is judged: VITCLI_AXE names no axe.min.js")


@pytest.mark.parametrize("make", PAGES, ids=lambda make: make.__name__)
def test_a_page_keeps_its_promises(browser, copy_of_run, make):
    page = make(copy_of_run)
    for options in SCREENS.values():
        shown = ready(browser.open(page.as_uri(), **options))
        assert shown.console_messages() == []
        assert shown.requests() == []
        assert shown.overflow() <= 0
        assert (shown.evaluate(GROUND) == WHITE) is not ("dark" in options)
        assert shown.evaluate("[...document.images].every(e => e.naturalWidth)")
        if AXE.is_file():
            shown.evaluate(f"{AXE.read_text()}; 0")
            found = shown.evaluate(FOUND)
            assert not [rule for rule in found if make is not report or NAMELESS not in rule], found
        if make in (report, visualize) and "phone" in options:
            assert shown.evaluate(SMALL) == 0, "text in its usual size; the figure scrolls"
    assert shown.evaluate("document.title") != "ran"
    for width in WIDTHS:
        shown.resize(width, 800)
        assert shown.overflow() <= 0, width
    shown.print_on(718)
    assert shown.overflow() <= 0
    assert shown.evaluate(GROUND) == WHITE, "paper is white, also of a dark page"
    assert not shown.evaluate(CLIPPED), "paper does not scroll"
    if make is explain:
        return  # it has no script at all
    text = page.read_text(errors="surrogateescape")
    body = "<main>" if "<main>" in text else "<h1>"
    page.write_text(text.replace(body, f"{ATTACK}{body}", 1), errors="surrogateescape")
    shown = browser.open(page.as_uri())
    assert shown.evaluate("document.title") != "ran"
    assert any("Content Security Policy" in str(each) for each in shown.console_messages())


def test_each_explorer_of_a_page_handles_its_own_keys(browser, copy_of_run):
    views = "[...document.querySelectorAll('.explorer')].map(e => e.dataset.layer + e.dataset.head)"
    shown = ready(browser.open(visualize(copy_of_run).as_uri()))
    before = shown.evaluate(views)
    shown.press("2")
    assert shown.evaluate(views) == before, "no explorer has the focus"
    shown.evaluate("document.querySelectorAll('.explorer')[1].querySelector('.stage').focus()")
    shown.press("2")
    shown.wait(f"({views})[1] === '22'")
    assert shown.evaluate(views)[0] == before[0]


def test_the_button_saves_the_choices_beside_the_corrections_of_the_run(
    browser, copy_of_run, pictures, tmp_path
):
    """A name with a comma and a quote stays whole; a choice replaces an older correction."""
    dark = pictures / "train" / "dark"
    (pictures / "train" / "bright" / "1.png").rename(dark / 'a, "b".png')
    Path("old.csv").write_text("file,label\ntrain/bright/2.png,dark\ntrain/dark/3.png,\n")
    copy_of_run(Path("run"), {"train.epochs": 1, "data.corrections": "old.csv"})
    said(0, "eval", "run", "--review", "--data-dir", pictures)
    shown = browser.open(Path("run/review.html").absolute().as_uri())
    saved = tmp_path / "saved" / "corrections.csv"
    options = {"behavior": "allow", "downloadPath": str(saved.parent)}
    browser.call("Browser.setDownloadBehavior", **options)
    of = "[...document.querySelectorAll('[data-file]')].filter(e => e.dataset.file === {!r})"
    name = 'train/dark/a, "b".png'
    for file, choice in ((name, "bright"), ("train/bright/2.png", "leave out")):
        shown.evaluate(
            f"(() => {{ const select = {of.format(file)}[0].querySelector('select');"
            f" [...select.options].find(e => e.text === '{choice}').selected = true;"
            " select.dispatchEvent(new Event('change')); })()"
        )
    shown.evaluate("document.getElementById('save').click()")
    deadline = time.monotonic() + TIMEOUT
    while not saved.is_file():
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.05)
    old = [["train/bright/2.png", ""], ["train/dark/3.png", ""]]  # the first was dark
    new = [[name, "bright"]]
    assert [*csv.reader(saved.read_text().splitlines())] == [["file", "label"], *old, *new]
    assert shown.console_messages() == []
