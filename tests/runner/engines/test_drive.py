"""Two drivers in one folder: each trial is trained once, and both see every result."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import HANG
from tests.runner.engines.studies import STUDY as THREE
from tests.runner.study.test_states import ROOT, STUDY, fabricate
from vitcli.runner.engines import drive
from vitcli.runner.engines.drivers import join_drivers
from vitcli.runner.engines.engine import Job, Setup
from vitcli.runner.engines.plan_file import read_plan
from vitcli.runner.errors import InUseError, StoppedError
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.definition import Study, load_study
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study, write_plan
from vitcli.runner.train.events import Ended, Message, Stopping, TrialEvent

BUSY = Ended(state="failed", reason="in use", exit=InUseError.exit_code)
Train = Callable[[str], Ended]


@pytest.fixture
def study(here) -> Study:
    (here / "mine.yaml").write_text(STUDY)
    return load_study("mine.yaml")


class Fake:
    """An engine that asks the test about the end of each trial."""

    outlives_driver = False

    def __init__(self, train: Train) -> None:
        self.train = train
        self.rounds: list[list[str]] = []
        self.left: list[bool] = []
        self.stopping = False

    def __call__(self, name: str, root: Path, jobs: list[Job], setup: Setup) -> "Fake":
        self.rounds.append([job.folder for job in jobs])
        self.stopping = False
        return self

    def add(self, job: Job) -> None:
        raise NotImplementedError

    def events(self, tick):
        for folder in list(self.rounds[-1]):
            tick()
            if not self.stopping:
                yield TrialEvent(folder, self.train(folder))

    def stop(self, *, leave: bool = False) -> None:
        self.stopping = True
        self.left.append(leave)


@pytest.fixture
def run(study, monkeypatch) -> Callable[..., tuple[Fake, list[TrialEvent], Any]]:
    monkeypatch.setattr(drive, "POLL_SECONDS", 0.0)

    def run(train: Train, listen=lambda event: None, **options: Any):
        engine, events = Fake(train), []
        monkeypatch.setattr(drive, "make_engine", engine)

        def note(event: TrialEvent) -> None:
            events.append(event)
            listen(event)

        plan = plan_study(study, ROOT, ("full",))
        given = Options(jobs=1, device="cpu", command="vitcli ablate mine", **options)
        return engine, events, run_study(plan, given, note)

    return run


def train_here(folder: str) -> Ended:
    fabricate(folder.split("/")[0], int(folder[-1]))
    return Ended(state="finished", score=0.5)


def test_a_trial_of_another_driver_is_waited_for_and_its_result_taken(run):
    """full/seed1 belongs to another driver, which finishes it while this one waits."""
    with contextlib.ExitStack() as other:

        def train(folder: str) -> Ended:
            if folder == "full/seed0":
                return train_here(folder)
            other.enter_context(RunDir(ROOT / folder).lock())
            return BUSY

        def listen(event: TrialEvent) -> None:
            if isinstance(event.event, Message) and "waiting" in event.event.text:
                other.close()
                fabricate("full", 1, 0.75)

        engine, events, states = run(train, listen)
    assert engine.rounds == [["full/seed0", "full/seed1"]]
    assert [state.state for state in states.values()] == ["finished"] * 2
    ends = [(e.folder, e.event.score) for e in events if isinstance(e.event, Ended)]
    assert ends == [("full/seed0", 0.5), ("full/seed1", 0.75)]
    (text,) = [e.event.text for e in events if isinstance(e.event, Message)]
    assert text == "1 trial trained by another process; waiting"


def test_a_trial_that_another_driver_gives_up_is_trained_here(run):
    tried: list[str] = []

    def train(folder: str) -> Ended:
        tried.append(folder)
        return BUSY if tried.count(folder) == 1 else train_here(folder)

    engine, _, states = run(train)
    assert engine.rounds == [["full/seed0", "full/seed1"], ["full/seed0"], ["full/seed1"]] or (
        engine.rounds == [["full/seed0", "full/seed1"]] * 2
    )
    assert {state.state for state in states.values()} == {"finished"}


def test_ctrl_c_ends_the_wait_for_another_driver(run, monkeypatch):
    class Signal(drive.StopFlag):
        pass

    flags: list[Signal] = []

    def make() -> Signal:
        flags.append(Signal())
        return flags[-1]

    monkeypatch.setattr(drive, "StopFlag", make)

    def listen(event: TrialEvent) -> None:
        if isinstance(event.event, Message):
            flags[0].number = 2

    with RunDir(ROOT / "full/seed0").lock(), pytest.raises(StoppedError, match="Continue:"):
        run(lambda folder: BUSY, listen)


@pytest.mark.parametrize("number", [1, 2, 15])
def test_only_a_closed_terminal_leaves_jobs_that_outlive_the_driver(run, monkeypatch, number):
    class Signal(drive.StopFlag):
        def __init__(self) -> None:
            super().__init__()
            self.number = number

    monkeypatch.setattr(drive, "StopFlag", Signal)
    monkeypatch.setattr(Fake, "outlives_driver", True)
    events: list[TrialEvent] = []
    with pytest.raises(StoppedError) as caught:
        run(train_here, events.append)
    assert caught.value.exit_code == 128 + number
    told = [event.event for event in events]
    assert (Stopping() in told) is (number == 2)
    assert (Message(text=drive.LEFT) in told) is (number != 2)


def test_the_second_driver_says_so_and_keeps_the_plan_of_the_first(run, study):
    (ROOT / "logs").mkdir(parents=True)
    write_plan(plan_study(study, ROOT, ()), Options())
    planned = read_plan(ROOT)
    commit_json(ROOT / "plan.json", planned | {"trials": planned["trials"] | {"old/seed0": {}}})
    with join_drivers(ROOT):
        _, events, _ = run(train_here)
    texts = [e.event.text for e in events if isinstance(e.event, Message)]
    assert texts == ["another process trains this study, too; each trial is trained once"]
    assert "old/seed0" in read_plan(ROOT)["trials"]
    (ROOT / "full/seed0/status.json").unlink()
    run(train_here)
    assert "old/seed0" not in read_plan(ROOT)["trials"], "alone, a driver writes its own plan"


@pytest.mark.ci
def test_two_commands_at_once_train_each_trial_once(tiny, environment):
    Path("mine.yaml").write_text(THREE % (4, [0, 1]))
    words = ["ablate", "mine.yaml", "-j", "1", "--device", "cpu", "--format", "csv"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "vitcli", *words, "-o", "both"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [process.communicate(timeout=HANG) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert ends[0][0] == ends[1][0]
    assert ends[0][0].count("\n") == 4
    for path in Path("both").glob("*/seed*/meta.json"):
        assert RunDir(path.parent).read("meta.json")["sessions"] == [], "trained in one go"
    trained = [text for end in ends for text in end[1].splitlines() if "test " in text]
    assert len(list(Path("both").glob("*/seed*/result.json"))) == 6
    assert len(trained) >= 6


@pytest.mark.parametrize(("ends", "trained"), [("fdfdf", 5), ("dffdd", 3)])
def test_only_failures_in_a_row_end_the_trials(here, monkeypatch, ends, trained):
    """``f`` fails, ``d`` diverges; two failures in a row are too many."""
    states = {"f": "failed", "d": "diverged"}
    engine = Fake(lambda folder: Ended(state=states[ends[int(folder)]], reason="why"))
    monkeypatch.setattr(drive, "make_engine", engine)
    setup: Any = SimpleNamespace(cluster=SimpleNamespace(engine="local"))
    seen: list[TrialEvent] = []
    drive.Drive(here, setup, seen.append, max_failures=2).run([*map(str, range(len(ends)))])
    assert len(seen) == trained
