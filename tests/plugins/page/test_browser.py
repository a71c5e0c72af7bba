"""The page of runs in a real browser: it does what its controls say."""

import pytest

from tests.browser.chromium import Page
from tests.fabricated import make_run, make_study_folder
from vitcli.plugins.page.page import write_page
from vitcli.runner.run.folder import RUNS

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("here")]
STATES = dict.fromkeys(("full/seed0", "no-ffn/seed0", "full/seed1"), "finished")
STATES |= {"no-ffn/seed1": "diverged"}
NAMES = (
    "[...document.querySelectorAll('#table tbody tr:not([hidden]) strong')].map(e => e.textContent)"
)
CELLS = "[...document.querySelectorAll('#{} tr')].map(e => [...e.children].map(c => c.textContent))"


@pytest.fixture
def show(browser):
    def show(**options) -> Page:
        return browser.open(write_page(RUNS)[0].absolute().as_uri(), **options)

    return show


@pytest.fixture
def study() -> None:
    make_study_folder(STATES)
    make_run(0, folder=RUNS / "pets", changes={"model.depth": 6}, accuracy=0.7)
    make_run(0, folder=RUNS / "broken").path.joinpath("config.yaml").write_text("a: [")


def choose(shown: Page, control: str, value: str, event: str = "change") -> None:
    shown.evaluate(
        f"(() => {{ const control = document.getElementById('{control}'); "
        f" control.value = {value!r}; control.dispatchEvent(new Event('{event}')); }})()"
    )


def cells(shown: Page, table: str) -> list[list[str]]:
    return list(shown.evaluate(CELLS.format(table)))


def test_seeds_share_a_row_with_mean_spread_and_states(show, study):
    shown = show()
    full, no_ffn, *others = cells(shown, "table")[1:]
    assert full[1:4] == ["parts/full2 seeds \u00b7 scenes", "60.50 \u00b1 0.71 %", "2 finished"]
    assert no_ffn[2] == "50.00 %"
    assert no_ffn[3].startswith("1 finished, 1 diverged 3/6")
    damaged, finished = (line[3] for line in others)
    assert damaged.startswith("damagedconfig.yaml: line 1: not YAML")
    assert finished == "finished"
    choose(shown, "rows", "run")
    assert shown.evaluate(NAMES)[:4] == [f"parts/{name}" for name in sorted(STATES)]
    count = shown.evaluate("document.getElementById('count').textContent")
    assert count == "6 of 6 rows, 6 runs; 4 selected", "the seeds of the selected rows"


def test_selected_rows_without_a_curve_are_named_with_the_reason(show):
    make_run(0, folder=RUNS / "fine")
    make_run(0, folder=RUNS / "lost").path.joinpath("metrics.jsonl").unlink()
    shown = show()
    shown.evaluate("document.getElementById('all').click()")
    note = shown.evaluate("document.getElementById('note').textContent")
    assert note == "No curve of lost: metrics.jsonl: it is missing."


def test_rows_are_filtered_by_words_and_by_state(show, study):
    shown = show()
    choose(shown, "filter", "PARTS no-f", "input")
    assert shown.evaluate(NAMES) == ["parts/no-ffn"]
    choose(shown, "filter", "", "input")
    choose(shown, "state", "damaged")
    assert shown.evaluate(NAMES) == ["broken"]
    assert shown.evaluate("document.getElementById('count').textContent").startswith("1 of 4 rows")


def test_rows_are_sorted_by_a_column_and_rows_without_a_value_stay_last(show, study):
    shown = show()
    header = "[...document.querySelectorAll('#table thead button')]"
    result = f"{header}.find(e => e.textContent === 'result')"
    shown.evaluate(f"{result}.click()")
    best_first = shown.evaluate(NAMES)
    assert best_first[0] == "pets"
    assert shown.evaluate(f"{result}.parentNode.getAttribute('aria-sort')") == "descending"
    shown.evaluate(f"{result}.click()")
    assert shown.evaluate(NAMES)[::3] == ["parts/no-ffn", "broken"]
    shown.evaluate(f"{header}[0].click()")
    assert shown.evaluate(NAMES) == ["broken", "parts/full", "parts/no-ffn", "pets"]


def test_curves_show_the_mean_and_the_spread_over_seeds(show, study):
    """The curves of the two seeds are 0.01 apart, so the standard deviation is 0.0071."""
    shown = show()
    (_, name, value), second = cells(shown, "legend")
    assert (name, value) == ("full (n = 2)", "60.5 ± 0.71  epoch 6")
    assert second[1:] == ["no-ffn (n = 2)", "35.5 ± 0.71  epoch 3"]
    assert shown.evaluate("document.querySelectorAll('#chart .band').length") == 2
    tails = "document.querySelectorAll('#chart .tail').length"
    assert shown.evaluate(tails) == 1, "the seed that did not diverge goes on alone"
    shown.evaluate("document.getElementById('chart').focus()")
    shown.press("ArrowRight")
    assert cells(shown, "legend")[0][2] == "35.5 ± 0.71  epoch 1"
    choose(shown, "series", "lr")
    assert cells(shown, "legend")[0][2] == "0.001 ± 0.0  epoch 6"


def test_any_selection_shows_its_differences(show, study):
    shown = show()
    shown_fields = [["field", "full", "no-ffn"], ["model.ffn", "gelu", "none"]]
    assert cells(shown, "differences") == shown_fields
    shown.evaluate("document.getElementById('none').click()")
    assert cells(shown, "differences")[1] == ["Select two rows or more."]
    for name in ("parts/full", "pets"):
        shown.evaluate(f"document.querySelector('[aria-label=\"select {name}\"]').click()")
    fields = [line[0] for line in cells(shown, "differences")]
    assert "model.depth" in fields
    assert "model.ffn" not in fields
