"""`vitcli runs page` and `vitcli runs watch` on fabricated folders."""

import signal

import pytest

from tests.cli.commands import document
from tests.fabricated import STUDY, make_study_folder
from tests.patience import HANG
from tests.terminal import open_terminal, read_until, read_until_end
from vitcli.runner.run.folder import RunDir

pytestmark = pytest.mark.usefixtures("here")


STATES = dict.fromkeys(("full/seed0", "no-ffn/seed0", "full/seed1"), "finished")
STATES |= {"no-ffn/seed1": "running", "full/seed2": "missing", "no-ffn/seed2": "missing"}


def test_a_snapshot_shows_all_trials():
    make_study_folder(STATES)
    with RunDir(STUDY / "no-ffn/seed1").lock():
        found = document("runs", "watch", "parts")
    assert found["seconds_left"] == pytest.approx(30, abs=5)
    assert {trial["name"]: trial["state"] for trial in found["trials"]} == STATES
    trial = document("runs", "watch", "parts")["trials"][3]
    assert (trial["state"], trial["epochs"]) == ("interrupted", 3), "nobody holds its lock"


def test_a_terminal_is_redrawn_until_ctrl_c(environment):
    make_study_folder(STATES | {"full/seed2": "finished"})
    later = (STUDY / "full/seed2").rename("later")
    words = ("runs", "watch", "parts", "--every", "0.2")
    with (
        RunDir(STUDY / "no-ffn/seed1").lock(),
        open_terminal(*words, environment=environment) as (process, terminal),
    ):
        seen = read_until(terminal, b"3 finished")
        seen += read_until(terminal, b"epoch 3 of 6")
        later.rename(STUDY / "full/seed2")
        seen += read_until(terminal, b"4 finished")
        process.send_signal(signal.SIGINT)
        seen += read_until_end(terminal)
        assert process.wait(HANG) == 130
    assert b"full/seed0" in seen
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l"), "the cursor is shown"
