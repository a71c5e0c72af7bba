"""Parts of a training: graphs, first weights, events, warnings, and what is imported late."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import denoising
from tests.core.objectives.views.viewing import view_task
from tests.core.specs import changed
from tests.core.trainings import data_set
from tests.patience import HANG
from vitcli.core.spec import TASKS, ExperimentSpec, TrainSpec
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import BUNDLED, RunDir
from vitcli.runner.train import initial
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
from vitcli.runner.train.initial import describe_fitting
from vitcli.runner.train.start import Request, start

DROPS = {"drop_path": 0.1, "attn_drop": 0.1, "proj_drop": 0.1}


def uses(device: str, graphs: bool | None = None, recompute: bool = False, **model) -> bool:
    train = TrainSpec(graphs=graphs, grad_checkpointing=recompute)
    messages: list[str] = []
    spec = ExperimentSpec(model=changed(**model), train=train)
    found = use_graphs(spec, torch.device(device), messages.append)
    assert bool(messages) == (recompute and not found)
    return found


@pytest.mark.parametrize(
    ("device", "graphs", "expected"),
    [
        ("cuda", None, True),
        ("cuda:1", True, True),
        ("cuda", False, False),
        ("cpu", None, False),
        ("mps", None, False),
        ("cpu", False, False),
    ],
)
def test_graphs_are_used_on_cuda_unless_they_are_switched_off(device, graphs, expected):
    assert uses(device, graphs) == expected


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_graphs_need_cuda(device):
    with pytest.raises(ConfigError, match=f"train.graphs: CUDA graphs need .* not {device}"):
        uses(device, graphs=True)


@pytest.mark.parametrize("rate", DROPS)
def test_recomputed_dropout_is_not_captured(rate):
    """In a graph, a recomputed block would draw other numbers than in the forward pass."""
    assert uses("cuda", recompute=True)
    assert uses("cuda", **{rate: 0.1})
    assert not uses("cuda", recompute=True, **{rate: 0.1})


def test_the_experiments_that_bundled_weights_fit_are_named(here):
    run = RunDir(BUNDLED / "cifar10-pocket")
    names = re.split(", | and ", describe_fitting(run).removeprefix("they fit the experiment"))
    assert names[0].split()[-1] == "cifar10-pocket"
    wanted = abstract_module(run.spec()).state_dict()
    for name in names:
        model = load_experiment(name.split()[-1]).spec.model
        sizes = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}
        own = abstract_module(run.spec().replace(model=model.replace(**sizes))).state_dict()
        assert {k: v.shape for k, v in own.items()} == {k: v.shape for k, v in wanted.items()}


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
    EpochDone(record={"step": 1}),
    Message(text="a note"),
    Stopping(),
    Ended(state="finished", score=0.5),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_the_same_after_its_line(event):
    line = to_line(TrialEvent("full/seed0", event))
    assert line.count("\n") == 1
    assert from_line(line) == TrialEvent("full/seed0", event)


def test_every_kind_of_event_was_sent():
    assert {type(event) for event in EVENTS} == set(KINDS.values())


def test_each_different_sentence_is_told_once(tiny, here, monkeypatch):
    seen, told = [], []
    sentences = ["", "the outputs are all equal", "the outputs are all equal", "they are zero"]

    def diagnose(self, numbers):
        seen.append(numbers)
        return sentences[len(seen) - 1]

    monkeypatch.setitem(TASKS, "denoise", denoising.ROW)
    monkeypatch.setattr(denoising.Denoise, "diagnose", diagnose)
    experiment = load_experiment(str(tiny), {"task.name": "denoise"})
    run = start(experiment, Request(output=Path("run")), on_message=told.append).run
    warnings = [text for text in told if text.startswith("warning: ")]
    assert warnings == ["warning: the outputs are all equal", "warning: they are zero"]
    assert [numbers["loss"] for numbers in seen] == [r["train_loss"] for r in run.metrics()]


LATE = ("torch._dynamo", "torch.utils.flop_counter", "tensorboard", "matplotlib", "scipy")
TRAIN = f"""
import sys
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.train import trainer
from vitcli.runner.train.events import Progress
from vitcli.runner.train.start import Request, start

trainer.REPORT_SECONDS = 0  # report after the first step

def stop(event):
    if isinstance(event, Progress):
        sys.exit(f"step {{event.step}}: {{[name for name in {LATE} if name in sys.modules]}}")

start(load_experiment(sys.argv[1]), Request(), on_event=stop)
"""


def test_the_first_step_imports_nothing_that_only_later_work_needs(tiny):
    command = [sys.executable, "-c", TRAIN, str(tiny)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.stderr == "step 1: []\n"
