"""The page of `vitcli eval --review` in a real browser: its button saves what was chosen."""

import csv
import time
from pathlib import Path

import pytest

from tests.browser.chromium import TIMEOUT
from tests.cli.commands import vitcli

pytestmark = [pytest.mark.browser, pytest.mark.usefixtures("here")]


def test_the_button_saves_the_choices_beside_the_corrections_of_the_run(
    browser, copy_of_run, pictures, tmp_path
):
    """A file in two lists has one choice; a name with a comma and a quote stays whole."""
    dark = pictures / "train" / "dark"
    (pictures / "train" / "bright" / "1.png").rename(dark / 'a, "b".png')
    Path("old.csv").write_text("file,label\ntrain/bright/2.png,dark\ntrain/dark/3.png,\n")
    (dark / "copy.png").write_bytes((dark / 'a, "b".png').read_bytes())
    (dark / "copy.png").rename(pictures / "train" / "bright" / "copy.png")
    copy_of_run(Path("run"), {"train.epochs": 1})
    config = Path("run/config.yaml")
    config.write_text(config.read_text().replace("corrections: null", "corrections: old.csv"))
    code, _, talk = vitcli("eval", "run", "--review", "--data-dir", pictures)
    assert code == 0, talk
    shown = browser.open(Path("run/review.html").absolute().as_uri())
    browser.call(
        "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path / "saved")
    )
    of = "[...document.querySelectorAll('[data-file]')].filter(e => e.dataset.file === {!r})"
    name = 'train/dark/a, "b".png'
    assert shown.evaluate(f"{of.format(name)}.length") >= 2, "a suspect, and one of a pair"
    for file, choice in ((name, "bright"), ("train/bright/copy.png", "leave out")):
        shown.evaluate(
            f"(() => {{ const select = {of.format(file)}[0].querySelector('select');"
            f" select.selectedIndex = [...select.options].findIndex(e => e.text === '{choice}');"
            " select.dispatchEvent(new Event('change')); })()"
        )
    texts = f"{of.format(name)}.map(e => e.querySelector('select').selectedOptions[0].text)"
    assert {*shown.evaluate(texts)} == {"bright"}
    shown.evaluate("document.getElementById('save').click()")
    saved, deadline = tmp_path / "saved" / "corrections.csv", time.monotonic() + TIMEOUT
    while not saved.is_file():
        assert time.monotonic() < deadline, "nothing was saved"
        time.sleep(0.05)
    with saved.open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["file", "label"],
            ["train/bright/2.png", "dark"],
            ["train/dark/3.png", ""],
            [name, "bright"],
            ["train/bright/copy.png", ""],
        ]
    assert shown.console_messages() == []
