"""The page of topics in a real browser: it fits a phone, loads nothing and shows its figures."""

import pytest

from tests.runner.explain.made_up import bundled, lessons
from vitcli.runner.explain.lesson import page as page_of

pytestmark = pytest.mark.browser
SHOWN = (
    "[...document.querySelectorAll('img, svg')].every(e => e.getBoundingClientRect().width > 40)"
)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_and_loads_nothing(browser, tmp_path, width, dark):
    page = tmp_path / "explain.html"
    page.write_text(page_of(bundled(), lessons()))
    shown = browser.open(page.as_uri(), size=(width, 800), dark=dark, phone=width < 500)
    assert shown.overflow() <= 0
    assert shown.evaluate(SHOWN)
    assert shown.console_messages() == []
    assert [url for url in shown.requests() if not url.startswith(("file:", "data:"))] == []
