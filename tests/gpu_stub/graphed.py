"""Count what the steps of small trainings ask of the stub GPU. Runs in a process on the stub."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from tests.core.trainings import train_state
from tests.gpu_stub.counting import Seen, counting
from tests.gpu_stub.steps import EXPERIMENTS
from vitcli.core.spec import OPTIMIZERS
from vitcli.core.train.executor import WARM_UP
from vitcli.core.train.training import Training
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.speed.workload import make_workload
from vitcli.runner.text import ignore_message

COUNTED = 2
"""Number of steps that are counted."""
LAUNCHES = ("launch", "graph_launch", "memset", "h2d", "d2d")
"""Everything that the host asks the device to do."""
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name} {precision}": (precision, {"optim": {"name": name}})
        for name in OPTIMIZERS
        for precision in PRECISIONS
    },
    "average": ("bf16", {"train": {"ema_decay": 0.9}}),
    "average of batch norm": (
        "bf16",
        {"model": {"norm": "batch_norm"}, "train": {"ema_decay": 0.9}},
    ),
    "accumulate": ("fp16", {"train": {"accumulate": 2}}),
    "recomputed": ("bf16", {"train": {"grad_checkpointing": True}}),
    "dropout": ("bf16", {"model": {"proj_drop": 0.1, "drop_path": 0.1, "attn_drop": 0.1}}),
    "no clipping": ("bf16", {"optim": {"max_grad_norm": None}}),
    "mixed at first": ("bf16", {"augment": {"cutmix": 1.0, "mix_off_epoch": 1}}),
    "augmented": ("bf16", {"augment": {"crop_padding": 2, "flip": "random", "erasing": 0.5}}),
    "performer": ("bf16", {"model": {"attention": "performer", "performer_redraw": 1}}),
}


def count_training(precision: str, changes: dict[str, Any], *, graphs: bool) -> dict[str, Any]:
    """Return launches and host copies of a step, and waits and unpinned copies of an epoch."""
    messages: list[str] = []
    options: dict[str, Any] = {"graphs": graphs, "on_message": messages.append}
    state = train_state(changes, "cuda", PRECISIONS[precision], **options)
    for epoch in range(2):
        list(state.run_epoch(epoch))
    with counting() as epoch_seen:
        steps = state.run_epoch(2)
        next(steps)
        seen = count_steps(steps)
        list(steps)
    return {
        "launches": seen.count(*LAUNCHES) / COUNTED,
        "copies": seen.count("h2d") / COUNTED,
        "waits": epoch_seen.count("sync", "d2h"),
        "unpinned": epoch_seen.unpinned,
        "places": [" ".join(place) for place in epoch_seen.places],
        "messages": messages,
    }


def count_steps(steps: Iterator[object]) -> Seen:
    """Return what the next steps ask of the stub."""
    with counting() as seen:
        for _ in range(COUNTED):
            next(steps)
    return seen


def count_experiment(name: str) -> tuple[float, list[str]]:
    """Return the launches of a step of a shipped experiment, and the messages of its graph."""
    work = make_workload(load_experiment(name, {"train.compile": False}), "cuda", ignore_message)
    messages: list[str] = []
    state = Training(
        work.spec,
        work.built.task,
        work.built.data,
        work.built.autocast,
        graphs=True,
        on_message=messages.append,
    )
    steps = state.run_epoch(0)
    for _ in range(WARM_UP + 1):
        next(steps)
    return count_steps(steps).count(*LAUNCHES) / COUNTED, messages


def count_trainings() -> None:
    found = {}
    for name, (precision, changes) in CASES.items():
        for graphs in (True, False):
            found[f"{name}, graphs {graphs}"] = count_training(precision, changes, graphs=graphs)
    sys.stdout.write(json.dumps(found))


def count_experiments() -> None:
    sys.stdout.write(json.dumps({name: count_experiment(name) for name in EXPERIMENTS}))
