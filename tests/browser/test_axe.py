"""Judge: axe-core 4.14 (MPL-2.0, npm). It decides whether each page can be used by everybody.

``VITCLI_AXE`` is the path of its axe.min.js; ``npm install axe-core`` gets it.
"""

import os
from pathlib import Path

import pytest

from tests.browser.test_pages import PAGES, ready, report

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("here")]
AXE = Path(os.environ.get("VITCLI_AXE", ""))
NAMELESS = "empty-table-header"
"""What it says of the report, in which the name of a variant is an empty text."""
FOUND = """axe.run().then(found => found.violations.map(rule =>
  rule.id + ': ' + rule.nodes.map(node => node.target.join(' ')).slice(0, 5).join(', ')))"""


@pytest.mark.parametrize("make", PAGES, ids=lambda make: make.__name__)
def test_a_page_breaks_no_rule_of_axe(browser, copy_of_run, make):
    if not AXE.is_file():
        pytest.skip("axe-core: VITCLI_AXE names no axe.min.js")
    page = make(copy_of_run).as_uri()
    for dark, size in ((False, (1280, 800)), (True, (360, 640))):
        shown = ready(browser.open(page, dark=dark, size=size))
        shown.evaluate(f"{AXE.read_text()}; 0")
        found = [
            rule for rule in shown.evaluate(FOUND) if not (make is report and NAMELESS in rule)
        ]
        assert not found, "\n".join(found)
