"""Parts of a training: graphs, compiled models, first weights, events, operations and imports."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo

from tests.core.specs import REQUIRED, changed, pictures
from tests.core.specs import build as build_noisy
from tests.core.trainings import data_set, experiment
from tests.patience import HANG
from tests.plugin_rows import of_task
from tests.runner.train.conftest import often
from vitcli.core.models.image_model import build_model
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.train import flops
from vitcli.runner.train.build import build_training, compile_task, use_graphs
from vitcli.runner.train.events import KINDS, TrialEvent, from_line, to_line
from vitcli.runner.train.flops import count_operations, random_data

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


VALUE: Any = {"nothing": None, "number": 0.5, "text": "two\nlines"}
"""Stands for the value of each field."""


@pytest.mark.parametrize("kind", KINDS.values())
def test_events_of_every_kind_are_the_same_after_their_lines(kind):
    event = TrialEvent("full/seed0", kind(**dict.fromkeys(kind.__dataclass_fields__, VALUE)))
    line = to_line(event)
    assert line.count("\n") == 1
    assert from_line(line) == event


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


BESIDE: tuple[dict[str, Any], ...] = (
    {"name": "clip", "captions": "folder", "text_dim": 16, "text_depth": 1},
    {"name": "fusion", "sound": "folder", "fusion": "late", "sound_patch_size": 16},
)


@pytest.mark.parametrize("task", [of_task({"task": task}, task) for task in BESIDE])
def test_random_pictures_have_what_the_task_reads_beside_them(task):
    spec = experiment({"task": task, "data": {"name": "imagefolder:here"}})
    data = random_data(spec, 64, torch.device("cpu"))
    module = filled_module(spec, data)
    step = next(build_training(spec, module, data).run_epoch(0))
    assert step.scalars["loss"].isfinite()


COUNTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "two encoders": {"task": {"name": "dino"}},
    "recomputed": {"train": {"grad_checkpointing": True, "accumulate": 2, "ema_decay": 0.9}},
    "frozen": {"train": {"freeze": 1}},
    "in bf16": {"train": {"precision": "bf16"}},
    "drawn": {"model": {"attention": "performer"}},
    "in windows": {"model": {"family": "swin", **REQUIRED["swin"]}},
}


@pytest.mark.parametrize("case", [of_task(changes, name) for name, changes in COUNTED.items()])
def test_a_trained_module_is_counted_as_a_new_one(monkeypatch, case):
    spec, data = experiment(COUNTED[case]), data_set()
    data = replace(data, train=replace(data.train, extra={}))
    training = build_training(spec, filled_module(spec, data), data)
    next(training.run_epoch(0))
    batch = next(training.batches(0))
    counts = []
    for module in (None, training.module):
        monkeypatch.setattr(flops, "_counted", {})
        counts.append(count_operations(spec, batch, module))
    assert counts[0] == counts[1]


COMPILED: dict[str, dict[str, Any]] = {
    **{name: {"family": name} | REQUIRED[name] for name in ("swin", "coatnet", "pit")},
    **{name: {"attention": name, "depth": 1} for name in ATTENTIONS},
    "dropout": {"drop_path": 0.1, "proj_drop": 0.1, "attn_drop": 0.1, "pos_embed": "rope2d"},
    "scores": {"pos_embed": "relative", "attn_scale": "learned", "attn_clamp": True},
    "locality": {"attn_mask_diagonal": True, "ffn": "depthwise", "patch_embed": "shifted"},
    "batch norm": {"norm": "batch_norm"},
}
VARIANTS = [{}, {"pool": "mean"}, {"patch_size": 8}]
"""More models than torch is allowed to keep versions of one function."""


@pytest.fixture
def shapes(monkeypatch):
    """Shape of the images of each graph that torch makes; no code is generated."""
    plain, found = torch.compile, []

    def note(graph, inputs):
        places = [node for node in graph.graph.nodes if node.op == "placeholder"]
        found.extend(node.meta["example_value"].shape for node in places if "images" in node.name)
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda module, **options: plain(module, backend=note, **options)
    )
    yield found
    torch._dynamo.reset()


@pytest.mark.parametrize("case", often([*COMPILED, "recomputed"], "swin", "recomputed"))
def test_a_training_is_one_graph_and_an_evaluation_another(shapes, case):
    model = build_model(changed(**COMPILED.get(case, {}))).train()
    model.grad_checkpointing = case == "recomputed"
    compiled = torch.compile(model, fullgraph=True)  # a graph break raises an error
    for _ in range(2):
        compiled(pictures(4).float()).sum().backward()
    assert len(shapes) == 1
    model.eval()
    with torch.inference_mode():
        compiled(pictures(4).float())
    assert len(shapes) == 2


def compile_model(batch_size: int = 4, **fields) -> list[str]:
    model = build_noisy(depth=1, **fields).train()
    spec = ExperimentSpec(model=model.spec, train=TrainSpec(batch_size=batch_size, compile=True))
    batch = {"images": pictures(batch_size), "targets": torch.zeros(batch_size, dtype=torch.long)}
    messages: list[str] = []
    assert compile_task(Classify(spec, model), [batch], None, messages.append)
    return messages


def test_every_variant_of_a_study_is_compiled(shapes):
    with torch._dynamo.config.patch(accumulated_recompile_limit=len(VARIANTS) - 1):
        for count, fields in enumerate(VARIANTS, start=1):
            assert compile_model(**fields) == ["compiling the model ..."]
            assert len(shapes) == count, fields


def test_every_batch_size_is_compiled_for_its_own_shape(shapes):
    for size in (4, 6):
        compile_model(size)
        assert shapes[-1][0] == size
        assert type(shapes[-1][0]) is int
