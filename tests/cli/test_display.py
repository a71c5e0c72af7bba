"""The display of trials: what it says in a log and on a terminal, whatever comes in which order."""

import pytest

from vitcli.cli import live, trials
from vitcli.core.spec.task import TASKS
from vitcli.runner.train.events import (
    Ended,
    Event,
    Message,
    Progress,
    Started,
    Stopping,
    TrialEvent,
)

STARTED = Started(
    folder="", task="classify", headline="accuracy", data="scenes", device="cpu", precision="fp32",
    kernels="torch", parameters=1, num_train=10, num_test=10, epochs=4, steps_per_epoch=5,
    first_step=0,
)  # fmt: skip


def step(number: int) -> Progress:
    return Progress(
        epoch=1 + number // 5, batch=1, step=number, scalars={"loss": 1.25, "accuracy": 0.5},
        lr=0.1, images_per_second=9.0, seconds_left=20.0 - number, gpu_bytes=None,
    )  # fmt: skip


EVENTS: list[tuple[str, Event]] = [
    *(("a", STARTED), ("a", Message(text="the data are small")), ("b", STARTED)),
    *(("b", Message(text="the data are small")), ("a", step(10)), ("b", step(15))),
    *(("a", Ended(state="finished", score=0.625)), ("", Stopping())),
    *(("b", Ended(state="failed", reason="out of memory")), ("c", Ended(state="interrupted"))),
]


def show(capsys) -> tuple[list[str], str]:
    with trials.display(4, 2, TASKS["classify"], "val") as screen:
        for folder, event in EVENTS:
            screen.show(TrialEvent(folder, event))
    printed = capsys.readouterr()
    return [line.split("  ")[0] for line in printed.err.splitlines()], printed.err


def test_a_log_has_a_line_for_each_message_and_each_end(capsys):
    lines, text = show(capsys)
    ends = ["a", "stopping: every running trial saves a checkpoint", "b", "b: out of memory", "c"]
    assert lines == ["4 to train, 2 at once", "a: the data are small", *ends]
    assert "val 62.5" in text


def test_a_log_says_what_runs_where_nothing_else_was_said(capsys, monkeypatch):
    monkeypatch.setattr(live, "LINE_SECONDS", -1.0)
    _, text = show(capsys)
    assert "all 0 of 4 trials, about 20 s left; a epoch 3" in text
    assert "about 18 s left" in text, "two workers: 10 s and 7.5 s, 5 s and 7.5 s"


@pytest.mark.parametrize("name", ["[red]", "a\x1b[31m"])
def test_a_terminal_has_bars_and_no_name_steers_it(capsys, monkeypatch, name):
    monkeypatch.setattr(live, "is_live", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with live.bars() as progress:
        display = live.Display(progress)
        display.move(name, 1, 2, "epoch 1")
        progress.refresh()
        display.say("said")
        display.end(name)
    text = capsys.readouterr().err
    assert ("epoch 1" in text, "said" in text, "\x1b[31m" in text) == (True, True, False)
    assert name.replace("\x1b", "\\x1b") in text
