"""`vitcli runs watch` on fabricated folders: snapshots, a terminal of 80 x 24, Ctrl-C."""

import re
import signal
from functools import partial

import pytest

from tests.cli.commands import document, started, vitcli
from tests.fabricated import record
from tests.fabricated_runs import HOSTILE, STUDY, make_study_folder
from tests.patience import HANG
from tests.terminal import open_terminal, read_until, read_until_end
from vitcli.cli.watch_screen import AXIS, LABEL, Range, draw, range_of, screen
from vitcli.runner.engines.drivers import join_drivers
from vitcli.runner.files import commit_json
from vitcli.runner.overview.progress import Watcher
from vitcli.runner.run.folder import RunDir

pytestmark = pytest.mark.usefixtures("here")
watch = partial(vitcli, "runs", "watch")
STATES = dict.fromkeys(("full/seed0", "no-ffn/seed0", "full/seed1"), "finished")
STATES |= {"no-ffn/seed1": "running", "full/seed2": "missing", "no-ffn/seed2": "missing"}


def test_a_snapshot_shows_all_trials_and_compares_equal_seeds_at_equal_epochs():
    make_study_folder(STATES)
    with RunDir(STUDY / "no-ffn/seed1").lock():
        code, out, _ = watch("parts", "--once")
    assert (code, "3 finished, 1 running, 2 not begun, about 30 s left" in out) == (0, True)
    trials = document("runs", "watch", "parts")["trials"]
    assert [trial["name"] for trial in trials] == [*STATES]
    facts = {"name": "no-ffn/seed1", "variant": "no-ffn", "state": "interrupted", "epochs": 3}
    facts |= {"planned": 6, "headline": "accuracy", "value": pytest.approx(0.36)}
    assert trials[3] | {"reason": ""} == facts | {"reason": ""}
    lines = [line for line in out.splitlines() if " epochs " not in line and line]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert rows["full"] == ["##.", "12/18", "60.50", "baseline"]
    assert rows["no-ffn"] == ["#>.", "9/18", "43.00", "-10.00"]
    assert ("61.00 full/seed1" in out, "36.00 no-ffn/seed1" in out) == (True, True)
    assert max(map(len, out.splitlines())) <= 80


def test_a_search_between_two_trials_has_not_ended():
    make_study_folder({"full/seed0": "finished"})
    watcher = Watcher(STUDY)
    with join_drivers(STUDY):
        assert (watcher.read().has_ended, watcher.read().is_running) == (False, True)
    assert (watcher.read().has_ended, watcher.read().is_running) == (True, False)


@pytest.mark.parametrize(("epochs", "is_left"), [((0, 1, 2), True), ((1, 9, 2), False)])
def test_a_curve_has_the_epochs_of_its_points(epochs, is_left):
    """Epoch 0 is that of a probe; epoch 9 of 6 is of a damaged file."""
    make_study_folder({"full/seed0": "interrupted"})
    lines = [record(epoch + 1, 0.5 + epoch / 50) | {"epoch": epoch} for epoch in epochs]
    RunDir(STUDY / "full/seed0").set_metrics(lines)
    rows = [
        line.split("|")[1] for line in screen(Watcher(STUDY).read(), 80).splitlines() if "|" in line
    ]
    drawn = [row[: 80 - AXIS - LABEL].rstrip("\u2800 ") for row in rows]
    assert (max(map(len, drawn)) < 40) == is_left, drawn


def test_reasons_are_told_and_a_hostile_name_steers_no_terminal():
    make_study_folder({"full/seed0": "finished", "no-ffn/seed0": "diverged"})
    RunDir(STUDY / "no-ffn/seed0").set_status("diverged", 300, "loss is \x1b[31mnot finite")
    plan = RunDir(STUDY).read("plan.json")
    commit_json(STUDY / "plan.json", plan | {"study": f"\x1b]0;{HOSTILE}\x07"})
    out = watch("parts")[1]
    assert "\nno-ffn/seed0: diverged: loss is \\x1b[31mnot finite\n" in out
    assert not {"\x1b", "\x07"} & {*out}


@pytest.mark.parametrize("height", [24, 40])
def test_many_variants_leave_the_baseline_and_the_running_ones_on_the_screen(height):
    make_study_folder({"full/seed0": "finished", "no-ffn/seed0": "running"})
    plan = RunDir(STUDY).read("plan.json")
    more = {f"{name}/seed0": {"variant": name} for name in (f"v{i:02d}" for i in range(40))}
    ran = plan["trials"].pop("no-ffn/seed0")
    plan["trials"] |= more | {"no-ffn/seed0": ran}
    commit_json(STUDY / "plan.json", plan)
    with RunDir(STUDY / "no-ffn/seed0").lock():
        text = screen(Watcher(STUDY).read(), 80, height)
    lines = text.splitlines()
    assert height - 2 <= len(lines) <= height
    shown = [line.split()[0] for line in lines if re.match(r"(full|no-ffn|v\d\d) ", line)]
    assert (shown[0], shown[-1]) == ("full", "no-ffn")
    assert f"... and {42 - len(shown)} more" in lines
    assert text.count("no-ffn") >= 2, "its curve is shown, too"


def test_a_pipe_gets_one_plain_snapshot(environment):
    """The snapshots of commands have one in braille."""
    make_study_folder(STATES)
    done = started("runs", "watch", "parts", env=environment | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert not {"\x1b", "\r"} & {*done.stdout}
    assert "****" in done.stdout


def test_a_terminal_is_redrawn_until_ctrl_c(environment):
    make_study_folder(STATES)
    words = ("runs", "watch", "parts", "--every", "0.2")
    utf8 = environment | {"PYTHONIOENCODING": "utf-8"}
    with open_terminal(*words, environment=utf8) as (process, terminal):
        seen = read_until(terminal, b"Ctrl-C")
        make_study_folder(STATES | {"full/seed2": "finished"})
        seen += read_until(terminal, b"4 finished")
        process.send_signal(signal.SIGINT)
        seen += read_until_end(terminal)
        assert process.wait(HANG) == 130
    assert re.search("[\u2801-\u28ff]{3}", seen.decode()), "a curve in braille"
    assert seen.rfind(b"\x1b[?25h") > seen.rfind(b"\x1b[?25l"), "the cursor is shown"


def picture(*curves, width=4, height=2) -> str:
    points = [point for curve in curves for point in curve]
    x, y = range_of([a for a, _ in points]), range_of([b for _, b in points])
    return "\n".join("".join(map(chr, row)) for row in draw(curves, width, height, x, y))


def test_curves_are_drawn_in_braille_and_share_characters():
    assert picture([(0, 0), (7, 7)]) == "⠀⠀⡠⠊\n⡠⠊⠀⠀"
    assert picture([(0, 7), (7, 0)]) == "⠑⢄⠀⠀\n⠀⠀⠑⢄"
    rising, falling = [(0, 0), (1, 3)], [(0, 3), (1, 0)]
    assert picture(rising, width=1, height=1) == "⡜"
    assert picture(rising, falling, width=1, height=1) == "⣿"


def test_one_point_is_one_dot_and_equal_numbers_are_in_the_middle():
    assert picture([(3, 5)], width=3, height=1).count("⠀") == 2
    assert Range(low=5, high=5).place(5, 9) == 4
