"""The site of the pages as readers open it: from a folder, offline, on a phone, in the dark."""

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.browser.test_pages import AXE, FOUND

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT)
    for part in ("*.md", "docs/**/*.md", "tests/f*/**/README.md")
    for path in ROOT.glob(part)
)
SEARCH = "document.activeElement.shadowRoot"

pytestmark = pytest.mark.browser
pytest.importorskip("zensical", reason="pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site of a copy of its sources: Zensical writes only into the folder of its file."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    for part in ("docs", "experiments", "tests"):
        shutil.copytree(ROOT / part, folder / part)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(shutil.move(folder / "site", folder.parent / "site"))


def page_in(site: Path, page: Path) -> Path:
    return site / (page.with_name("index.md") if page.stem == "README" else page).with_suffix(
        ".html"
    )


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_of_the_site_keeps_its_promises(browser, site, page):
    url = page_in(site, page).as_uri()
    for dark, size in ((False, (1280, 800)), (True, (360, 640))):
        shown = browser.open(url, dark=dark, size=size)
        assert shown.console_messages() == []
        assert [each for each in shown.requests() if not each.startswith("file://")] == []
        assert shown.overflow() <= 0
        assert shown.evaluate("[...document.images].every(e => e.naturalWidth)")
        ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 384) is dark
        if AXE.is_file():
            shown.evaluate(f"{AXE.read_text()}; 0")
            found = shown.evaluate(FOUND)
            assert not found, "\n".join(found)


def test_the_site_is_searched_without_a_server(browser, site):
    shown = browser.open((site / "index.html").as_uri())
    shown.evaluate("document.querySelector('.md-search__button').click()")
    shown.wait(f"{SEARCH}?.activeElement?.matches('input')")
    for letter in "checkpoint":
        shown.press(letter)
    shown.wait(f"{SEARCH}.querySelector('[role=option]')")
    assert shown.evaluate(f"{SEARCH}.activeElement.value") == "checkpoint"
    links = shown.evaluate(f"[...{SEARCH}.querySelectorAll('[role=option]')].map(e => e.href)")
    assert any("docs/reference/run-folder.html" in link for link in links)


class Links(HTMLParser):
    """The targets and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = {""}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.targets.add(unquote(value or ""))


def test_each_link_of_the_site_leads_to_a_part_of_the_site(site):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert {*pages} == {page_in(site, page) for page in PAGES}
    broken = []
    for page, links in pages.items():
        for target in links.targets:
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            if not target.startswith("https://") and (
                not found.is_relative_to(site)
                or not found.is_file()
                or (found in pages and anchor not in pages[found].anchors)
            ):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert broken == []
    named = re.findall(r"\((\S+)\.md\)", (site / "llms.txt").read_text())
    assert [name for name in named if not (site / f"{name}.html").is_file()] == []
