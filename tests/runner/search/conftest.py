"""Searches without a training: scores by formula, run folders written by an engine."""

import json
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Job, Setup
from vitcli.runner.experiment.config import check
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.files import commit, commit_json, make_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.run import run_search
from vitcli.runner.search.trials import Trials
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, EpochDone, TrialEvent

ROOT = Path("runs/made")
SPACE = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 32, 48], model.num_heads: [1, 2, 5]}"


def write_search(**fields: str) -> str:
    """Write ``made.yaml``; ``fields`` replace entries of the search."""
    entries = {"space": SPACE, "sampler": "random", "trials": "6"} | fields
    lines = "\n".join(f"  {name}: {value}" for name, value in entries.items())
    Path("made.yaml").write_text(
        "question: which is best?\nbase: quickstart\ndata: {val_split: 1000}\n"
        f"train: {{epochs: 2}}\nsearch:\n{lines}\n"
    )
    return "made.yaml"


def size(spec: ExperimentSpec) -> int:
    model: Any = spec.model
    return 100 * model.depth * model.embed_dim


def score(spec: ExperimentSpec) -> float:
    """Return a score by formula; the best point of ``SPACE`` is depth 3, width 48, one head."""
    model: Any = spec.model
    return 0.5 - 0.05 * abs(model.depth - 3) + model.embed_dim / 1000 - 0.01 * model.num_heads


def write_run(folder: Path, entry: dict[str, Any], *, state: str, epochs: int = 2) -> None:
    """Write the files of a run that a search reads."""
    run, spec = RunDir(folder), check(entry["config"], Document("", "plan"))
    make_folder(folder)
    commit(folder / "config.yaml", dump(entry["config"]).encode())
    run.set_metrics(
        [{"step": e, "epoch": e, "val_accuracy": score(spec)} for e in range(1, epochs + 1)]
    )
    facts = {"config_hash": entry["config_hash"], "seed": spec.seed, "threads": 1}
    commit_json(folder / "meta.json", facts | {"data_hash": "d" * 64})
    if state == "finished":
        result = {"val_accuracy": score(spec), "num_test": 0, "parameters": size(spec)}
        commit_json(folder / "result.json", result)
    run.set_status(state, epochs, "as the test wants" if state == "diverged" else "")  # type: ignore[arg-type]


class Engine:
    """Ends each job at once, as a function of its configuration says.

    It reads the configuration from the plan on disk, as a worker does.
    """

    behave: Callable[[ExperimentSpec], str] = staticmethod(lambda spec: "finished")
    trained: list[str]
    """Run folders, in the order of the trainings."""
    cancelled: list[str]

    def __init__(self, root: Path, jobs: list[Job], setup: Setup) -> None:
        self.root, self.waiting, self.stopping = root, deque(jobs), False

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        while self.waiting and not self.stopping:
            tick()
            folder = self.waiting.popleft().folder
            plan = read_plan(self.root)
            assert plan["without_test"] is True
            spec = check(plan["trials"][folder]["config"], Document("", "plan"))
            Engine.trained.append(folder)
            state = Engine.behave(spec)
            for epoch in (1, 2):
                record = {"epoch": epoch, "step": epoch, "val_accuracy": score(spec)}
                yield TrialEvent(folder, EpochDone(record=record))
                if folder in Engine.cancelled:
                    state = "interrupted"
                    break
            write_run(self.root / folder, plan["trials"][folder], state=state, epochs=epoch)
            yield TrialEvent(folder, Ended(state=state))

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def cancel(self, folder: str) -> None:
        Engine.cancelled.append(folder)

    def stop(self) -> None:
        self.stopping = True


def make_trials(root: Path = ROOT, **changes: Any) -> Trials:
    """Return the trials of ``made.yaml``, continued from what the folder has."""
    search = load_search("made.yaml", {f"search.{field}": v for field, v in changes.items()})
    make_folder(root)
    return Trials(search, root, Options(jobs=1, device="cpu", command="vitcli search made.yaml"))


def search_all(root: Path = ROOT, **changes: Any) -> Trials:
    """Search to the end."""
    trials = make_trials(root, **changes)
    run_search(trials, ignore_message)
    return trials


def points(trials: Trials) -> list[str]:
    """Return the points of the trials, in the order of the questions, as text."""
    return [json.dumps(trial.params, sort_keys=True) for trial in trials.asked().values()]


@pytest.fixture
def made(here, monkeypatch) -> str:
    """Return the file of a search whose trainings end at once."""
    monkeypatch.setattr("vitcli.runner.engines.drive.make_engine", Engine)
    monkeypatch.setattr("vitcli.runner.search.trials.model_size", size)
    monkeypatch.setattr("os.fsync", ignore_message)  # no test here cuts the power
    monkeypatch.setattr(Engine, "trained", [], raising=False)
    monkeypatch.setattr(Engine, "cancelled", [], raising=False)
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))
    return write_search()
