"""Searches without a training: an objective by formula, run folders written by hand."""

import json
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Job, Setup
from vitcli.runner.experiment.config import check, config_hash
from vitcli.runner.experiment.yaml_text import Document
from vitcli.runner.files import commit_json, make_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.judge import Judge, Sizes
from vitcli.runner.search.objective import Objective
from vitcli.runner.search.run import run_search
from vitcli.runner.search.storage import Place
from vitcli.runner.search.trial import RESULT
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, EpochDone, TrialEvent

ROOT = Path("runs/made")
SPACE = "{model.depth: [1, 2, 3, 4], model.embed_dim: [16, 32, 48], model.num_heads: [1, 2, 5]}"


def write_search(search: str = "", **fields: str) -> str:
    """Write ``made.yaml``; ``search`` and ``fields`` replace entries of the search."""
    entries = {"space": SPACE, "sampler": "random", "trials": "6"} | fields
    lines = "\n".join(f"  {name}: {value}" for name, value in entries.items())
    Path("made.yaml").write_text(
        "question: which is best?\nbase: quickstart\ndata: {val_split: 1000}\n"
        f"train: {{epochs: 2}}\nsearch:\n{lines}\n{search}"
    )
    return "made.yaml"


def sizes(spec: ExperimentSpec, _: bool = False) -> Sizes:
    """Return sizes by formula, without a model."""
    model: Any = spec.model
    number = 100 * model.depth * model.embed_dim
    return Sizes(parameters=number, forward_flops=10 * number, train_flops=1000 * number)


def score(spec: ExperimentSpec) -> float:
    """Return a score by formula; the best point of ``SPACE`` is depth 3, width 48, one head."""
    model: Any = spec.model
    return 0.5 - 0.05 * abs(model.depth - 3) + model.embed_dim / 1000 - 0.01 * model.num_heads


def write_run(
    folder: Path, spec: ExperimentSpec, digest: str, *, state: str = "finished", epochs: int = 2
) -> None:
    """Write the files of a run that a search reads."""
    run = RunDir(folder)
    make_folder(folder)
    value = score(spec) + 0.001 * spec.seed
    lines = [
        {"step": epoch, "epoch": epoch, "val_accuracy": value} for epoch in range(1, epochs + 1)
    ]
    run.set_metrics(lines)
    meta = {"config_hash": digest, "seed": spec.seed, "data_hash": "d" * 64, "threads": 1}
    commit_json(folder / "meta.json", meta)
    if state == "finished":
        result = {"val_accuracy": value, "num_test": 0, "train_seconds": 2.0, "train_flops": 77}
        commit_json(folder / "result.json", result)
    run.set_status(state, epochs, "" if state == "finished" else "as the test wants")  # type: ignore[arg-type]


class Engine:
    """Ends each job at once, as a function of its configuration says.

    It reads the configuration from the plan on disk, as a worker does.
    """

    behave: Callable[[ExperimentSpec], str] = staticmethod(lambda spec: "finished")
    trained: list[str]
    """Run folders, in the order of the trainings."""
    cancelled: list[str]
    setup: Setup
    """Of the last engine."""

    def __init__(self, root: Path, jobs: list[Job], setup: Setup) -> None:
        Engine.setup = setup
        self.root, self.waiting, self.stopping = root, deque(jobs), False

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        while self.waiting:
            tick()
            if self.stopping:
                return
            folder = self.waiting.popleft().folder
            entry = read_plan(self.root)["trials"][folder]
            assert read_plan(self.root)["without_test"] is True
            spec = check(entry["config"], Document("", "plan"))
            Engine.trained.append(folder)
            state = Engine.behave(spec)
            if state == "failed":
                yield TrialEvent(folder, Ended(state="failed", reason="it broke"))
                continue
            for epoch in (1, 2):
                record = {"epoch": epoch, "step": epoch, "val_accuracy": score(spec)}
                yield TrialEvent(folder, EpochDone(record=record))
                if folder in Engine.cancelled:
                    break
            if folder in Engine.cancelled:
                state = "interrupted"
            write_run(self.root / folder, spec, config_hash(spec), state=state, epochs=epoch)
            yield TrialEvent(folder, Ended(state=state))

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def cancel(self, folder: str) -> None:
        Engine.cancelled.append(folder)

    def stop(self) -> None:
        self.stopping = True
        self.waiting.clear()


def make_objective(
    name: str = "made.yaml",
    save: Path | None = None,
    root: Path | None = None,
    storage: str | None = None,
    **changes: Any,
) -> Objective:
    """Return the trials of a search whose storage is that of earlier ones in the same folder."""
    search = load_search(name, {f"search.{field}": value for field, value in changes.items()})
    place = Place(root=root or ROOT, name=search.name, url=storage, save=save)
    for folder in (place.root, place.journal.parent):
        make_folder(folder)
    options = Options(jobs=1, device="cpu", command="vitcli search made.yaml")
    return Objective(search, place, options, Judge(search, sizes))


def search_all(name: str = "made.yaml", **given: Any) -> Objective:
    """Search to the end."""
    objective = make_objective(name, **given)
    run_search(objective, ignore_message)
    return objective


def asked(objective: Objective) -> list[str]:
    """Return the points that have a result, in the order of the questions, as text."""
    trials = objective.study.get_trials(deepcopy=False)
    done = [trial for trial in trials if RESULT in trial.user_attrs]
    return [json.dumps(trial.params, sort_keys=True) for trial in done]
