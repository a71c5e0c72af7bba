"""Training steps of every experiment, family, task and so on, counted in a process on the stub GPU.

This command writes the committed ceilings again:

    python -m tests.gpu_stub.stub python -m tests.gpu_stub.steps
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

from tests.core.trainings import train_state
from tests.gpu_stub.counting import Seen, counting
from vitcli.core.data.source import DataSet
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import FAMILIES, OPTIMIZERS, TASKS
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.core.train import optim
from vitcli.core.train.training import Training
from vitcli.plugins.bench.training import make_workload
from vitcli.runner.data.load import describe_data
from vitcli.runner.experiment import listing
from vitcli.runner.experiment.config import Experiment, load_experiment
from vitcli.runner.experiment.resolve import fit_to_data
from vitcli.runner.machine.device import DTYPES
from vitcli.runner.text import ignore_message
from vitcli.runner.train.build import compile_training
from vitcli.runner.train.flops import random_data, with_statistics

FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))
NO_FFT = ("fusion", "fusion-gpu")
"""Experiments that the stub cannot take: it has no cuFFT, which makes spectrograms."""
EXPERIMENTS = [
    path.stem
    for path in FILES
    if listing.name_of_kind(path) == "experiment" and path.stem not in NO_FFT
]
OWN_VIEWS: dict[str, Any] = {"data.augment": {}}
NEEDS: dict[str, dict[str, Any]] = {"dino": OWN_VIEWS, "lejepa": OWN_VIEWS}
"""Task -> the fields that it needs besides its name."""
CEILINGS = Path(__file__).with_name("ceilings.json")
WARM, STEPS = 5, 3
"""Steps before the count, among them those before a capture, and counted steps."""
LAUNCHES = ("launch", "graph_launch", "memset", "d2d", "h2d", "d2h")
COMPILED = ("quickstart", "cifar10-small")
SHORT = {"model.depth": 2}
"""To compile more blocks takes minutes."""
LINES = {"waits": ("sync",), "copies": ("h2d", "d2h"), "unpinned": ("unpinned",)}
Case = tuple[str, dict[str, Any]]

MIXED = {"policy": "trivial_augment", "erasing": 0.5, "mixup": 0.8, "flip": "alternating"}
COMBINATIONS: dict[str, dict[str, Any]] = {
    "fp16, adamw": {"train.precision": "fp16", "optim.name": "adamw"},
    "parts, checkpointing": {"train.accumulate": 4, "train.grad_checkpointing": True},
    "average": {"train.ema_decay": 0.99},
    "redrawn performer": {"model.attention": "performer", "model.performer_redraw": 1},
    "augmentation": {f"data.augment.{name}": value for name, value in MIXED.items()},
}


def experiment_cases() -> dict[str, Case]:
    """Return a case for an experiment of each kind; ``row_cases`` has the other differences."""
    found: dict[object, str] = {}
    for name in EXPERIMENTS:
        spec = load_experiment(name).spec
        model: Any = spec.model
        width = model.embed_dim // model.num_heads if hasattr(model, "num_heads") else model.family
        found.setdefault(width if spec.task.name == "classify" else spec.task.name, name)
    return {name: (name, {}) for name in found.values()}


def row_cases() -> dict[str, Case]:
    changes = {
        # Muon refuses models without transformer blocks.
        **{f"family {r}": {"model.family": r, "optim.name": "adamw"} for r in FAMILIES},
        **{
            f"task {row}": {"task.name": row} | NEEDS.get(row, {})
            for row in TASKS
            if row not in NO_FFT
        },
        **{f"attention {row}": {"model.attention": row} for row in ATTENTIONS},
        **{f"optimiser {row}": {"optim.name": row} for row in OPTIMIZERS},
        **{f"precision {name}": {"train.precision": name} for name in DTYPES},
        **COMBINATIONS,
    }
    return {name: ("quickstart", fields) for name, fields in changes.items()}


def run_steps(name: str, changes: dict[str, Any], *, graphs: bool) -> tuple[Seen, list[str]]:
    """Take a few training steps, with their data; return the counts and the messages."""
    experiment = load_experiment(name, {"train.compile": False} | changes)
    work = make_workload(experiment, "cuda", ignore_message)
    compile_training(work.training, ignore_message)
    messages: list[str] = []
    options: dict[str, Any] = {"graphs": graphs, "on_message": messages.append}
    state = Training(
        work.spec, work.training.task, work.training.data, work.training.autocast, **options
    )
    steps = state.run_epoch(0)
    for _ in range(WARM):
        next(steps)
    with counting() as seen:
        for _ in range(STEPS):
            next(steps)
    return seen, messages


def random_pictures(experiment: Experiment, count: int) -> DataSet:
    spec = with_statistics(fit_to_data(experiment.spec, describe_data(experiment.spec.data)))
    return random_data(spec, count, torch.device("cpu"))


def count_steps(name: str, changes: dict[str, Any], *, graphs: bool) -> dict[str, Any]:
    """Return what one training step asks of the GPU; ``launches`` is a mean, rounded up."""
    seen, messages = run_steps(name, changes, graphs=graphs)
    lines: dict[str, set[str]] = {name: set() for name in LINES}
    for kind, place in seen.places:
        for line, kinds in LINES.items():
            if kind in kinds:
                lines[line].add(place)
    found = {line: sorted(places) for line, places in lines.items()}
    return {"launches": math.ceil(seen.count(*LAUNCHES) / STEPS), "messages": messages} | found


def count_all(cases: dict[str, Case]) -> dict[str, dict[str, Any]]:
    """Return what ``count_steps`` found, or its error: ``NAME`` without graphs, ``NAME, graph``."""
    rows: dict[str, dict[str, Any]] = {}
    for label, case in cases.items():
        for graphs in (False, True):
            row = f"{label}, graph" if graphs else label
            try:
                rows[row] = count_steps(*case, graphs=graphs)
            except Exception as error:
                rows[row] = {"error": f"{type(error).__name__}: {error}".partition("\n")[0]}
    return rows


def compiled_launches(name: str, **changes: Any) -> int:
    seen, _ = run_steps(name, {"train.compile": True} | changes, graphs=False)
    return math.ceil(seen.count(*LAUNCHES) / STEPS)


def steps_with_a_read(place: Any, name: str) -> tuple[list[int], list[str]]:
    original = getattr(place, name)

    def read(*args: Any) -> Any:
        found = original(*args)
        (found["loss"] if isinstance(found, dict) else found).item()
        return found

    setattr(place, name, read)
    messages: list[str] = []
    changes = {"model": {"proj_drop": 0.1}, "augment": {"mixup": 0.8, "mix_off_epoch": 1}}
    options: dict[str, Any] = {"graphs": True, "on_message": messages.append}
    state = train_state(changes, "cuda", torch.float16, **options)
    steps = [step.step for epoch in range(3) for step in state.run_epoch(epoch)]
    setattr(place, name, original)
    return steps, messages


def refuse_captures() -> list[tuple[list[int], list[str]]]:
    return [steps_with_a_read(Classify, "losses"), steps_with_a_read(optim, "total_norm")]


def write_ceilings() -> None:
    rows = count_all({name: (name, {}) for name in EXPERIMENTS} | row_cases())
    ceilings = {
        "torch": torch.__version__.rpartition(".")[0],
        "launches": {label: row["launches"] for label, row in rows.items()},
        "compiled": {name: compiled_launches(name) for name in COMPILED},
        "compiled, 2 blocks": {name: compiled_launches(name, **SHORT) for name in COMPILED},
    }
    CEILINGS.write_text(json.dumps(ceilings, indent=1) + "\n")


if __name__ == "__main__":
    write_ceilings()
