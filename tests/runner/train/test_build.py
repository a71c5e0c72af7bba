"""Parts of a training: graphs, first weights, events, warnings, imports, and the estimate."""

import subprocess
import sys
from types import SimpleNamespace
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
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.run.folder import BUNDLED, RunDir
from vitcli.runner.train import build, initial, rehearsal
from vitcli.runner.train.build import use_graphs
from vitcli.runner.train.estimate import make_estimate
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


def estimate(**changes):
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return make_estimate(load_experiment("cifar10-tiny", named))


@pytest.fixture
def probed(monkeypatch):
    found = SimpleNamespace(counts=[], each=1e-3)

    def probe(built):
        found.counts.append(built.spec.train.batch_size)
        return 2.0, found.counts[-1] * found.each

    monkeypatch.setattr(rehearsal, "probe", probe)
    return found


def test_accumulation_and_recomputing_save_memory(probed):
    whole = estimate().memory_bytes
    assert probed.counts == [32, 128], "quick steps are measured with the whole batch"
    assert estimate(train__accumulate=4).memory_bytes < 0.4 * whole
    assert estimate(train__grad_checkpointing=True).memory_bytes < 0.6 * whole


def test_slow_images_are_measured_smaller_and_the_time_is_scaled(probed, monkeypatch):
    """From 32x32 to 16x16 pixels; below, the grid would have fewer than 8x8 patches."""
    changes = {"model__patch_size": 2, "train__limit_batches": 5, "train__epochs": 1}
    probed.each = 1.0
    plain = estimate(**changes)
    monkeypatch.setattr(rehearsal, "QUICK_FLOPS", 0.0)
    monkeypatch.setattr("vitcli.runner.train.estimate.QUICK_FLOPS", 0.0)
    found = estimate(**changes)
    assert probed.counts[-1] == 2
    assert "16x16" in found.measured_on
    ratio = rehearsal.image_flops(found.spec) / rehearsal.image_flops(
        found.spec.replace(model=found.spec.model.replace(img_size=16))
    )
    assert found.train_seconds == pytest.approx(ratio * plain.train_seconds)
    assert ratio > 4
    assert (found.memory_bytes, found.train_flops) == (plain.memory_bytes, plain.train_flops)


def test_the_time_includes_the_start_and_the_evaluations(probed):
    """Six steps of a batch of 128; an image is evaluated in a third of its training time."""
    probed.each = 3.0
    found = estimate(train__epochs=3, train__limit_batches=2, train__eval_every=2)
    assert found.train_seconds == pytest.approx(6 * 128 * 3)
    assert found.evaluation_seconds == pytest.approx(2 * 1000)  # twice two batches of 500
    assert found.startup_seconds >= 2.0
    parts = found.startup_seconds + found.train_seconds + found.evaluation_seconds
    assert found.seconds == parts


@pytest.mark.parametrize(
    ("changes", "images"),
    [
        ({}, 10 * 10_000),
        ({"train__eval_every": 4}, 3 * 10_000),
        ({"data__val_split": 5000}, 10 * 5000 + 10_000),
        ({"data__val_split": 5000, "train__limit_batches": 1}, 10 * 500 + 500),
    ],
)
def test_evaluated_images(probed, changes, images):
    probed.each = 3.0
    assert estimate(train__epochs=10, **changes).evaluation_seconds == pytest.approx(images)


@pytest.mark.parametrize(
    "task",
    [
        {"name": "clip", "captions": "folder", "text_dim": 16, "text_depth": 1},
        {"name": "fusion", "sound": "folder", "fusion": "late", "sound_patch_size": 16},
    ],
)
def test_random_pictures_have_what_the_task_reads_beside_them(task):
    spec = experiment({"task": task, "data": {"name": "imagefolder:here"}})
    data = rehearsal.random_data(spec, 64, torch.device("cpu"))
    module = filled_module(spec, data)
    step = next(build.build_training(spec, module, data).run_epoch(0))
    assert step.scalars["loss"].isfinite()
