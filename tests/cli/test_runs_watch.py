"""`vitcli runs watch` on fabricated folders: snapshots, a terminal, Ctrl-C."""

import signal
from functools import partial

import pytest

from tests.cli.commands import document, vitcli
from tests.fabricated_runs import STUDY, make_study_folder
from tests.patience import HANG
from tests.terminal import open_terminal, read_until, read_until_end
from vitcli.runner.engines.drivers import join_drivers
from vitcli.runner.overview.progress import Watcher
from vitcli.runner.run.folder import RunDir

pytestmark = pytest.mark.usefixtures("here")
watch = partial(vitcli, "runs", "watch")
STATES = dict.fromkeys(("full/seed0", "no-ffn/seed0", "full/seed1"), "finished")
STATES |= {"no-ffn/seed1": "running", "full/seed2": "missing", "no-ffn/seed2": "missing"}


def test_a_snapshot_shows_all_trials():
    make_study_folder(STATES)
    with RunDir(STUDY / "no-ffn/seed1").lock():
        code, out, _ = watch("parts", "--once")
        assert document("runs", "watch", "parts")["seconds_left"] == pytest.approx(30, abs=5)
    assert code == 0
    rows = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:]}
    assert rows == {name: state for name, state in STATES.items() if state != "missing"}
    trials = document("runs", "watch", "parts")["trials"]
    assert [trial["name"] for trial in trials] == [*STATES]
    facts = {"name": "no-ffn/seed1", "variant": "no-ffn", "state": "interrupted", "epochs": 3}
    facts |= {"planned": 6, "headline": "accuracy", "value": pytest.approx(0.36)}
    assert trials[3] | {"reason": ""} == facts | {"reason": ""}


def test_a_search_between_two_trials_has_not_ended():
    make_study_folder({"full/seed0": "finished"})
    watcher = Watcher(STUDY)
    with join_drivers(STUDY):
        assert (watcher.read().has_ended, watcher.read().is_running) == (False, True)
    assert (watcher.read().has_ended, watcher.read().is_running) == (True, False)


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
