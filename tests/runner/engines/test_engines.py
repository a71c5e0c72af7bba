"""The driver of a study and its workers: what they train, what stops them, and other drivers."""

import contextlib
import os
import queue
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fabricated import make_run
from tests.patience import HANG
from tests.runner.engines import studies
from tests.runner.engines.studies import ablate, table_of
from tests.runner.study.trials import ROOT, fabricate, write_study
from vitcli.runner.engines import drive
from vitcli.runner.engines import local as engine
from vitcli.runner.engines.drivers import (
    join_drivers,
    no_drivers,
    other_drivers,
    prepare_folder,
    read_plan,
)
from vitcli.runner.engines.local import LocalEngine, Setup, Worker
from vitcli.runner.engines.worker import SharedData, run_trial
from vitcli.runner.errors import InputError, InUseError, PartlyError, ResourceError, StoppedError
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir, hold_folder
from vitcli.runner.run.record import read_record
from vitcli.runner.study.plan import Options, plan_study
from vitcli.runner.study.run import run_study, write_plan
from vitcli.runner.train.events import Ended, Event, Message, TrialEvent
from vitcli.runner.train.signals import StopFlag

BUSY = Ended(state="failed", reason="in use", exit=InUseError.exit_code)
Train = Callable[[str], Ended]


class Fake:
    """An engine that asks the test about the end of each trial."""

    def __init__(self, train: Train) -> None:
        self.train = train
        self.rounds: list[list[str]] = []
        self.waiting: list[str] = []
        self.stopping = False

    def __call__(self, root: Path, folders: list[str], setup: Setup) -> "Fake":
        self.rounds.append([*folders])
        self.stopping = False
        return self

    def events(self, tick):
        for folder in list(self.rounds[-1]):
            tick()
            if not self.stopping:
                yield TrialEvent(folder, self.train(folder))

    def stop(self) -> None:
        self.stopping = True


@pytest.fixture
def run(study, monkeypatch) -> Callable[..., tuple[Fake, list[TrialEvent], Any]]:
    monkeypatch.setattr(drive, "POLL_SECONDS", 0.0)

    def run(train: Train, listen=lambda event: None, rerun: tuple[str, ...] = (), **options: Any):
        engine, events = Fake(train), []
        monkeypatch.setattr(drive, "LocalEngine", engine)

        def note(event: TrialEvent) -> None:
            events.append(event)
            listen(event)

        plan = plan_study(study, ROOT, ("full",), rerun=rerun)
        given = Options(jobs=1, device="cpu", command="vitcli ablate mine", **options)
        return engine, events, run_study(plan, given, note)

    return run


def train_here(folder: str) -> Ended:
    fabricate(folder.split("/")[0], int(folder[-1]))
    return Ended(state="finished", score=0.5)


def texts_of(events: list[TrialEvent]) -> list[str]:
    return [each.event.text for each in events if isinstance(each.event, Message)]


def test_a_stale_trial_is_renamed_and_trained_again(run):
    path = fabricate("full", 0).path / "config.yaml"
    path.write_text(edited := path.read_text().replace("depth: 4", "depth: 5"))
    engine, events, states = run(train_here)
    assert engine.rounds == [["full/seed0", "full/seed1"]]
    assert states["full/seed0"].state == "finished"
    assert (ROOT / "full/seed0.stale1/config.yaml").read_text() == edited
    assert "seed0.stale1" in texts_of(events)[0]
    engine, _, _ = run(train_here, rerun=("full",))
    assert engine.rounds == [["full/seed0", "full/seed1"]], "--rerun trains finished trials, too"


@pytest.mark.parametrize("is_link", [False, True])
def test_rerun_keeps_what_vitcli_did_not_write(run, here, is_link):
    """Not the files of another folder, either: a link in place of a trial is kept."""
    trial = fabricate("full", 0)
    backup = shutil.copytree(trial.path, ROOT / "full/seed0.old1")
    if is_link:
        trial.path.rename(here / "elsewhere")
        trial.path.symlink_to(here / "elsewhere")
    (trial.path / "notes.txt").touch()
    before = {path.name for path in trial.path.iterdir()} if is_link else {"notes.txt"}
    _, events, states = run(train_here, rerun=("full",))
    assert states["full/seed0"].state == "finished"
    assert not trial.path.is_symlink()
    assert RunDir(backup).exists
    kept = ROOT / "full/seed0.old2"
    assert {path.name for path in kept.iterdir()} - {".lock"} == before - {".lock"}
    assert "seed0.old2" in texts_of(events)[0]


def test_neither_a_used_budget_nor_a_failure_with_fail_fast_starts_a_further_trial(run):
    with pytest.raises(PartlyError):
        run(train_here, budget=1e-9)
    assert not [*ROOT.glob("*/seed*")]

    def fail(folder: str) -> Ended:
        make_run(0, folder=ROOT / folder, state="running")
        return Ended(state="failed", reason="why")

    _, events, states = run(fail, fail_fast=True)
    assert states["full/seed0"].state == "failed"
    assert [event.folder for event in events] == ["full/seed0"]
    assert states["full/seed1"].state == "missing"
    engine, _, _ = run(train_here)
    assert engine.rounds == [["full/seed0", "full/seed1"]], "the next call trains a failed trial"


def test_missing_images_give_one_error_and_not_one_per_trial(run):
    events: list[TrialEvent] = []
    end = Ended(state="failed", reason="no pictures", exit=4, stage="data")
    with pytest.raises(InputError, match="no pictures"):
        run(lambda folder: end, events.append)
    assert events == []


@pytest.mark.parametrize(("again", "known"), [((), "d" * 64), (("full",), None)])
def test_the_images_of_the_results_of_other_seeds_are_those_of_the_next(study, again, known):
    fabricate("full", 0)
    later = replace(study, seeds=(0, 1) if again else (1,))
    write_plan(plan_study(later, ROOT, (), rerun=again), Options())
    assert read_plan(ROOT)["data_hash"] == known


def test_a_trial_of_another_driver_is_waited_for_and_its_result_taken(run):
    """full/seed1 belongs to another driver, which finishes it while this one waits."""
    with contextlib.ExitStack() as other:

        def train(folder: str) -> Ended:
            if folder == "full/seed0":
                return train_here(folder)
            other.enter_context(RunDir(ROOT / folder).lock())
            return BUSY

        def listen(event: TrialEvent) -> None:
            if isinstance(event.event, Message):
                other.close()
                fabricate("full", 1, 0.75)

        engine, events, states = run(train, listen)
    assert engine.rounds == [["full/seed0", "full/seed1"]]
    assert [state.state for state in states.values()] == ["finished"] * 2
    ends = [(e.folder, e.event.score) for e in events if isinstance(e.event, Ended)]
    assert ends == [("full/seed0", 0.5), ("full/seed1", 0.75)]
    assert texts_of(events) == ["1 trial trained by another process; waiting"]


def test_a_trial_that_another_driver_gives_up_is_trained_here(run):
    tried: list[str] = []

    def train(folder: str) -> Ended:
        tried.append(folder)
        return BUSY if tried.count(folder) == 1 else train_here(folder)

    engine, _, states = run(train)
    assert sorted(tried) == ["full/seed0"] * 2 + ["full/seed1"] * 2
    assert engine.rounds[0] == ["full/seed0", "full/seed1"]
    assert {state.state for state in states.values()} == {"finished"}


def test_ctrl_c_ends_the_wait_for_another_driver(run, monkeypatch):
    def listen(event: TrialEvent) -> None:
        if isinstance(event.event, Message):
            monkeypatch.setattr(StopFlag, "number", property(lambda flag: 2), raising=False)

    with RunDir(ROOT / "full/seed0").lock(), pytest.raises(StoppedError, match="Continue:"):
        run(lambda folder: BUSY, listen)


def test_the_second_driver_says_so_and_keeps_the_plan_of_the_first(run, study):
    (ROOT / "logs").mkdir(parents=True)
    write_plan(plan_study(study, ROOT, ()), Options())
    planned = read_plan(ROOT)
    commit_json(ROOT / "plan.json", planned | {"trials": planned["trials"] | {"old/seed0": {}}})
    with join_drivers(ROOT):
        _, events, _ = run(train_here)
    assert len(texts_of(events)) == 1
    assert "old/seed0" in read_plan(ROOT)["trials"]
    (ROOT / "full/seed0/status.json").unlink()
    run(train_here)
    assert "old/seed0" not in read_plan(ROOT)["trials"], "alone, a driver writes its own plan"


@pytest.mark.parametrize(("ends", "trained"), [("fdfdf", 5), ("dffdd", 3)])
def test_only_failures_in_a_row_end_the_trials(here, monkeypatch, ends, trained):
    """``f`` fails, ``d`` diverges; two failures in a row are too many."""
    states = {"f": "failed", "d": "diverged"}
    engine = Fake(lambda folder: Ended(state=states[ends[int(folder)]], reason="why"))
    monkeypatch.setattr(drive, "LocalEngine", engine)
    seen: list[TrialEvent] = []
    driver = drive.Drive(here, Setup(threads=1), seen.append, max_failures=2)
    driver.run([*map(str, range(len(ends)))])
    assert len(seen) == trained


def test_drivers_have_numbers_of_their_own_and_free_them(tmp_path):
    assert other_drivers(tmp_path) == 0
    with join_drivers(tmp_path) as first:
        assert other_drivers(tmp_path, own=first) == 0
        with join_drivers(tmp_path) as second:
            assert (first, second) == (0, 1)
            assert other_drivers(tmp_path, own=second) == 1
            assert other_drivers(tmp_path) == 2
        assert other_drivers(tmp_path, own=first) == 0
    with join_drivers(tmp_path) as again:
        assert again == 0


@pytest.mark.parametrize("hold", [join_drivers, prepare_folder])
def test_a_folder_with_a_driver_is_not_removed(tmp_path, hold):
    with no_drivers(tmp_path):
        pass
    with hold(tmp_path), pytest.raises(InUseError, match="this study"), no_drivers(tmp_path):
        pass


@pytest.mark.parametrize("hold", [join_drivers, lambda root: hold_folder(root, "in use")])
def test_a_folder_that_is_renamed_meanwhile_is_named(tmp_path, hold):
    root = tmp_path / "study"

    def write_after_renaming() -> None:
        with hold(root):
            root.rename(tmp_path / "moved")
            (root / "log.txt").write_text("")

    with pytest.raises(ResourceError, match="study: "):
        write_after_renaming()
    with pytest.raises(FileNotFoundError), hold(root):
        (tmp_path / "elsewhere" / "log.txt").write_text("")


def epochs_of(folder: Path) -> int:
    """Return the number of epochs (of 72) that all trials of a study have recorded."""
    return sum(path.read_bytes().count(b"\n") for path in folder.rglob("metrics.jsonl"))


@pytest.mark.slow
def test_a_study_killed_five_times_gives_the_same_table(tiny, environment):
    studies.write_study(epochs=8, seeds=(0, 1, 2))
    calm = table_of(ablate(environment, Path("calm"), "-j", "2"), Path("calm"))
    output, chance, killed = Path("killed"), random.Random(0), 0
    for _ in range(5):
        process = ablate(environment, output, "-j", "2")
        enough = epochs_of(output) + chance.randint(1, 12)
        while process.poll() is None and epochs_of(output) < enough:
            time.sleep(0.01)
        killed += process.poll() is None
        process.kill()
        process.communicate()
        time.sleep(chance.uniform(0, 2))
        states = [read_record(RunDir(path.parent)).status for path in output.rglob("status.json")]
        assert "failed" not in states
    assert killed >= 2, "the study was hardly ever killed while it ran"
    assert table_of(ablate(environment, output, "-j", "2"), output) == calm
    assert len(calm) == 3


FAKE = """
import json, os, signal, sys, time
from pathlib import Path
from vitcli.runner.train.events import Ended, Started, TrialEvent, to_line
root = Path(sys.argv[-1])
for line in sys.stdin:
    folder = json.loads(line)["folder"]
    started = dict.fromkeys(("parameters", "num_train", "num_test", "epochs", "steps_per_epoch"), 1)
    names = dict.fromkeys("folder task headline data device precision kernels".split(), "")
    event = Started(**names, **started, first_step=0)
    print(to_line(TrialEvent(folder, event)), end="", flush=True)
    with (root / folder).open("a") as file:
        file.write(os.environ["VITCLI_WORKER_CORES"] + ";")
    if folder == "killed" and (root / folder).read_text().count(";") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until = time.monotonic() + 60
    while not all((root / name).exists() for name in ("calm", "killed")):
        assert time.monotonic() < until
        time.sleep(0.01)
    print(to_line(TrialEvent(folder, Ended(state="finished"))), end="", flush=True)
"""
"""A worker that notes its cores in a file of the trial, and is killed once."""
ANSWERING = """
import json, os, sys, time
from vitcli.runner.train.events import Ended, TrialEvent, to_line
for line in sys.stdin:
    folder = json.loads(line)["folder"]
    print(to_line(TrialEvent(folder, %s)), end="", flush=True)
"""
"""A worker that ends each trial at once, with an event."""


def test_a_process_that_does_not_end_delays_no_study_and_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "EXIT_TIMEOUT", 0.2)
    lingering = ANSWERING % 'Ended(state="finished")' + "time.sleep(600)"
    monkeypatch.setattr(engine, "PROGRAM", ("-c", lingering))
    workers = LocalEngine(tmp_path, ["a"], Setup(count=1, threads=1))
    assert [event.event.state for event in workers.events(lambda: None)] == ["finished"]
    silent = ("-c", "import os, time; os.close(1); time.sleep(600)")
    monkeypatch.setattr(engine, "PROGRAM", silent)
    inbox: queue.Queue = queue.Queue()
    worker = Worker(tmp_path, "worker0", Setup(threads=1), inbox)
    assert inbox.get(timeout=HANG) == (worker, None), "its output has ended"
    assert worker.exit_reason() == "its process hung and was killed"
    assert worker.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("pin", [True, False])
def test_each_worker_has_cores_of_its_own_and_hands_them_to_its_successor(
    tmp_path, monkeypatch, pin
):
    """The machine has four cores; without pinning, a worker uses all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", None, raising=False)
    monkeypatch.setattr(engine, "PROGRAM", ("-c", FAKE))
    workers = LocalEngine(tmp_path, ["killed", "calm"], Setup(count=2, threads=2, pin=pin))
    ends = [e.event for e in workers.events(lambda: None) if isinstance(e.event, Ended)]
    assert [end.state for end in ends] == ["finished", "finished"]
    found = {name: (tmp_path / name).read_text().split(";")[:-1] for name in ("killed", "calm")}
    (first, second), (calm,) = found["killed"], found["calm"]
    assert first == second
    assert {first, calm} == ({"0,1", "2,3"} if pin else {""})


def test_a_trial_killed_at_its_last_attempt_has_failed_and_others_finish(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "MAX_ATTEMPTS", 1)
    monkeypatch.setattr(engine, "PROGRAM", ("-c", FAKE))
    workers = LocalEngine(tmp_path, ["killed", "calm"], Setup(count=2, threads=1))
    found = {e.folder: e.event for e in workers.events(lambda: None) if isinstance(e.event, Ended)}
    assert (found["killed"].state, found["calm"].state) == ("failed", "finished")
    assert "SIGKILL" in found["killed"].reason


def test_after_a_failed_gpu_another_process_takes_the_next_trial(tmp_path, monkeypatch):
    failing = ANSWERING % 'Ended(state="failed", reason=str(os.getpid()), exit=int(folder))'
    monkeypatch.setattr(engine, "PROGRAM", ("-c", failing))
    jobs = ["4", "5", "1", "4"]
    workers = LocalEngine(tmp_path, jobs, Setup(count=1, threads=1))
    events = [found.event for found in workers.events(lambda: None)]
    first, second, third, fourth = [event.reason for event in events if isinstance(event, Ended)]
    assert first == second, "the data of one trial were bad"
    assert len({second, third, fourth}) == 3


@pytest.fixture
def planned(here) -> RunDir:
    """The first trial of a study that is planned; another driver found that it diverged."""
    study, run = write_study(), fabricate("full", 0, state="diverged")
    write_plan(plan_study(study, ROOT, ()), Options(device="cpu", command="vitcli ablate mine"))
    return run


def end(**options: Any) -> Ended:
    """Let a worker train the trial; return how it ends."""
    events: list[Event] = []
    run_trial(ROOT, "full/seed0", send=events.append, load=SharedData(), **options)
    (found,) = [event for event in events if isinstance(event, Ended)]
    return found


def test_a_trial_that_diverged_under_another_driver_is_not_trained_again(planned):
    planned.set_status("diverged", 300, "loss is not finite")
    assert end() == Ended(state="diverged", reason="loss is not finite")
    commit_json(planned.path / "meta.json", {"config_hash": "of another trial"})
    found = end(request={"device": "abacus"})
    assert found.state == "failed", "its folder belongs to another configuration"


def test_a_driver_replaces_fields_of_the_plan_and_leaves_others_their_trials(planned, monkeypatch):
    planned.set_status("interrupted", 300)
    assert "abacus" in end(request={"device": "abacus"}).reason
    planned.set_status("running", 300)
    with planned.lock():
        found = end()
    assert (found.state, found.exit) == ("failed", 7)
    with contextlib.ExitStack() as other:

        def begun_elsewhere(*_: Any, **options: Any) -> None:
            other.enter_context(planned.lock())
            raise InputError("config.yaml: it is missing")

        monkeypatch.setattr("vitcli.runner.train.train.train", begun_elsewhere)
        assert end().exit == 7


@pytest.mark.parametrize("is_patient", [False, True])
def test_a_worker_ignores_the_second_of_two_signals(monkeypatch, is_patient):
    """A scheduler signals every process of a job, and the driver in the job signals its worker."""
    monkeypatch.setattr(StopFlag, "is_patient", is_patient)
    seen: list[int] = []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.number == signal.SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)
            assert bool(seen) is not is_patient
    finally:
        signal.signal(signal.SIGTERM, previous)
