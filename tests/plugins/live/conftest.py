"""A scene, and a browser that shows pages of the explorer."""

import pytest

from tests.browser.chromium import Page
from tests.plugins.live.scenes import Open, make_model, scene_of
from vitcli.plugins.live.page import Scene


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
