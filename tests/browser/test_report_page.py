"""A study's page in a real browser: it opens, scrolls only its tables, and runs no code."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.browser.chromium import chromium
from tests.fabricated_study import make_hostile_study, make_reference, make_study
from vitcli.runner.study.page import write_report
from vitcli.runner.study.result import StudyResult

pytestmark = pytest.mark.browser
ROWS: dict[str, list[float | str]] = {
    "baseline": [0.93, 0.94, 0.92],
    "no-positional-encoding": [0.86, 0.89, 0.87],
    "no-layernorm": ["diverged", "failed", 0.5],
}
MEASURE = """<script>addEventListener('load', () => {
  const images = [...document.images].map(image => [image.naturalWidth, image.clientWidth]);
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  document.title = JSON.stringify({images, wide, rows: document.querySelectorAll('tr').length});
});</script>"""


def browse(page: Path, *options: str) -> str:
    """Return the document in the browser after loading."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "install Debian's chromium"
    profile = page.parent / "profile"
    arguments = [
        *("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=2000", *options, "--dump-dom", page.as_uri()),
    ]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(doc: StudyResult, folder: Path, width: int) -> dict:
    """Return sizes that a script measures in a copy of the page without a policy."""
    page = write_report(doc, folder)[-1]
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', MEASURE, page.read_text())
    copy = folder / "measured.html"
    copy.write_text(text)
    dom = browse(copy, f"--window-size={width},900")
    return json.loads(re.findall(r"<title>(.*?)</title>", dom)[0])


@pytest.mark.parametrize("width", [500, 1400])
def test_figures_load_and_only_tables_scroll(width, tmp_path):
    doc = make_study(ROWS, reference=make_reference({"baseline": 93.1, "no-layernorm": 77.8}))
    sizes = measured(doc, tmp_path, width)
    assert len(sizes["images"]) == 2
    assert all(natural > 0 and shown > 0 for natural, shown in sizes["images"])
    assert sizes["wide"] <= 0, "the page itself must not scroll sideways"
    assert sizes["rows"] == (1 + 3) + (1 + 3) + (1 + 9)  # results, details, trials


LONG = {
    f"{i}-northern-flying-squirrel-with-acorn-\u00fcber-{'x' * 40}": [0.5, 0.6, 0.7]
    for i in range(8)
}


def test_a_phone_and_paper_show_long_names_figures_and_numbers(tmp_path):
    page = write_report(make_study(LONG, reference=make_reference({"x": 1.0})), tmp_path)[-1]
    with chromium(tmp_path / "profile") as browser:
        for dark in (False, True):
            shown = browser.open(page.as_uri(), size=(360, 800), dark=dark, phone=True)
            assert shown.overflow() <= 0
            widths = shown.evaluate("[...document.images].map(image => image.clientWidth)")
            assert min(widths) > 600, "text of a figure in its usual size; the figure scrolls"
            name = "document.querySelector('tbody th').clientWidth"
            assert shown.evaluate(name) < 180, "beside the name, there is room for a number"
        shown.print_on(718)
        assert shown.overflow() <= 0
        shades = "getComputedStyle(document.body)"
        assert shown.evaluate(f"{shades}.backgroundColor") == "rgb(255, 255, 255)"
        clipped = "[...document.querySelectorAll('.wide')].some(e => e.scrollWidth > e.clientWidth)"
        assert not shown.evaluate(clipped), "paper does not scroll"


def test_no_code_in_a_name_runs(tmp_path):
    doc = make_hostile_study()
    page = write_report(doc, tmp_path)[-1]
    marked = tmp_path / "marked.html"
    attack = "<script>document.title = 'ran'</script><img src=x onerror=\"document.title='ran'\">"
    marked.write_text(page.read_text().replace("<h1>", f"{attack}<h1>"))
    assert "<title>ran</title>" not in browse(marked), "the policy forbids scripts"
    allowed = tmp_path / "allowed.html"
    policy = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
    allowed.write_text(re.sub(policy, "", marked.read_text()))
    assert "<title>ran</title>" in browse(allowed), "without the policy the attack works"
    assert "<script" not in browse(page)
