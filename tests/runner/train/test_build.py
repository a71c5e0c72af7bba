"""Parts of a training: graphs, first weights, events, warnings and imports."""

import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.core.objectives.views.viewing import view_task
from tests.core.specs import changed
from tests.core.trainings import data_set, experiment
from tests.patience import HANG
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.run.folder import BUNDLED, RunDir
from vitcli.runner.train import build, initial
from vitcli.runner.train.build import use_graphs
from vitcli.runner.train.events import (
    KINDS,
    Ended,
    EpochDone,
    Message,
    Progress,
    Started,
    Stopping,
    TrialEvent,
    from_line,
    to_line,
)
from vitcli.runner.train.flops import random_data

DROPS = {"drop_path": 0.1, "attn_drop": 0.1, "proj_drop": 0.1}


def uses(device: str, graphs: bool | None = None, recompute: bool = False, **model) -> bool:
    train = TrainSpec(graphs=graphs, grad_checkpointing=recompute)
    messages: list[str] = []
    spec = ExperimentSpec(model=changed(**model), train=train)
    found = use_graphs(spec, torch.device(device), messages.append)
    assert bool(messages) == (recompute and not found)
    return found


def test_graphs_are_used_on_cuda_unless_they_are_switched_off_or_dropout_is_recomputed():
    """In a graph, a recomputed block would draw other numbers than in the forward pass."""
    assert uses("cuda")
    assert uses("cuda:1", graphs=True)
    assert uses("cuda", recompute=True)
    assert uses("cuda", **DROPS)
    assert not uses("cuda", graphs=False)
    assert not uses("cpu")
    for rate in DROPS:
        assert not uses("cuda", recompute=True, **{rate: 0.1})
    with pytest.raises(ConfigError, match=r"train\.graphs"):
        uses("mps", graphs=True)


def test_the_student_of_dino_starts_like_its_teacher(monkeypatch):
    task, run = view_task("dino"), RunDir(BUNDLED / "cifar10-pocket")
    given = {name: each + 1 for name, each in task.module.teacher.encoder.state_dict().items()}
    monkeypatch.setattr(initial, "encoder_weights", lambda source: dict(given))
    module = initial.initial_module(task.spec, data_set(), run, print)
    for part in (module.student.encoder, module.teacher.encoder):
        found = part.state_dict()
        assert all(torch.equal(found[name], each) for name, each in given.items())


STARTED: dict[str, Any] = dict.fromkeys(Started.__dataclass_fields__, 1) | {
    "folder": "runs/mine/full/seed0"
}
PROGRESS: dict[str, Any] = dict.fromkeys(Progress.__dataclass_fields__, 1) | {
    "scalars": {"loss": 0.5}
}
EVENTS = [
    Started(**STARTED),
    Progress(**PROGRESS | {"gpu_bytes": None}),
    *(EpochDone(record={"step": 1}), Message(text="a note"), Stopping()),
    Ended(state="finished", score=0.5),
]


def test_events_of_every_kind_are_the_same_after_their_lines():
    assert {type(event) for event in EVENTS} == set(KINDS.values())
    for event in EVENTS:
        line = to_line(TrialEvent("full/seed0", event))
        assert line.count("\n") == 1
        assert from_line(line) == TrialEvent("full/seed0", event)


LATE = ("torch._dynamo", "torch.utils.flop_counter", "tensorboard", "matplotlib", "scipy")
TRAIN = f"""
import sys
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train import hooks
from vitcli.runner.train.events import Progress
from vitcli.runner.train.prepare import Request
from vitcli.runner.train.train import train

hooks.REPORT_SECONDS = 0  # report after the second step, the first whose time is known

def stop(event):
    if isinstance(event, Progress):
        sys.exit(f"step {{event.step}}: {{[name for name in {LATE} if name in sys.modules]}}")

train(load_experiment(sys.argv[1]), Request(on_event=stop))
"""


def test_the_first_steps_import_nothing_that_only_later_work_needs(tiny):
    command = [sys.executable, "-c", TRAIN, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.stderr == "step 2: []\n"


@pytest.mark.parametrize(
    "task",
    [
        {"name": "clip", "captions": "folder", "text_dim": 16, "text_depth": 1},
        {"name": "fusion", "sound": "folder", "fusion": "late", "sound_patch_size": 16},
    ],
)
def test_random_pictures_have_what_the_task_reads_beside_them(task):
    spec = experiment({"task": task, "data": {"name": "imagefolder:here"}})
    data = random_data(spec, 64, torch.device("cpu"))
    module = filled_module(spec, data)
    step = next(build.build_training(spec, module, data).run_epoch(0))
    assert step.scalars["loss"].isfinite()
