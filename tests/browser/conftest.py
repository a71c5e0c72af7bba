"""A browser for the tests of one module, and a scene to show."""

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, Page, chromium
from tests.browser.explorer import Open, make_model, scene_of
from vitcli.runner.visualize.explorer.scene import Scene


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(autouse=True)
def _close_pages(browser) -> Iterator[None]:
    """Close the pages of a test, but not those that its module shares."""
    shared = len(browser.pages)
    yield
    browser.close(shared)


@pytest.fixture(scope="module")
def scene() -> Scene:
    return scene_of(make_model())


@pytest.fixture
def visit(browser, tmp_path) -> Open:
    def visit(content: bytes, **options) -> Page:
        file = tmp_path / "page.html"
        file.write_bytes(content)
        shown = browser.open(file.as_uri(), **options)
        shown.wait("document.querySelector('.explorer').dataset.values !== undefined")
        return shown

    return visit
