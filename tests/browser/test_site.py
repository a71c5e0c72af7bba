"""The site of docs/ as readers open it: from a folder, offline, on a phone, in the dark."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser.test_pages import AXE, FOUND

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md"))
SEARCH = """[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"""

pytestmark = pytest.mark.browser
pytest.importorskip("material", reason="pip install '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_page_of_the_site_keeps_its_promises(browser, site, page):
    url = (site / page.with_suffix(".html")).as_uri()
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
    shown.evaluate("document.querySelector('.md-search__input').focus()")
    shown.evaluate(
        "(e => { e.value = 'checkpoint'; e.dispatchEvent(new Event('keyup')) })"
        "(document.querySelector('.md-search__input'))"
    )
    shown.wait(f"{SEARCH}.length > 0")
    assert any("run-folder.html" in found for found in shown.evaluate(SEARCH))
