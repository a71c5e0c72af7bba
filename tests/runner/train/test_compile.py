"""Every training of a process is compiled, whatever was compiled before it."""

import pytest
import torch
import torch._dynamo

from tests.core.specs import build, pictures
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.runner.train.build import compile_task

VARIANTS = [
    *({}, {"pool": "mean"}, {"pos_embed": "none"}, {"pos_embed": "rope2d"}, {"norm": "rms_norm"}),
    *({"norm": "none"}, {"ffn": "relu"}, {"ffn": "swiglu"}, {"patch_size": 8}),
    *({"attention": "linear"}, {"residual": "none"}, {"norm_position": "post"}),
]
"""More models than torch keeps versions of one function."""


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


def compile_model(batch_size: int = 4, **fields) -> tuple[Classify, list[str]]:
    """Return a task with its compiled model, and what the user is told."""
    model = build(depth=1, **fields).train()
    spec = ExperimentSpec(model=model.spec, train=TrainSpec(batch_size=batch_size, compile=True))
    batch = {"images": pictures(batch_size), "targets": torch.zeros(batch_size, dtype=torch.long)}
    task = Classify(spec, model)
    messages: list[str] = []
    assert compile_task(task, [batch], None, messages.append)
    return task, messages


def test_every_variant_of_a_study_is_compiled(shapes):
    for count, fields in enumerate(VARIANTS, start=1):
        assert compile_model(**fields)[1] == ["compiling the model ..."]
        assert len(shapes) == count, fields


def test_every_batch_size_is_compiled_for_its_own_shape(shapes):
    for size in (4, 6, 3):
        compile_model(size)
        assert shapes[-1][0] == size
        assert type(shapes[-1][0]) is int


def test_the_user_is_told_that_torch_stops_compiling(shapes, monkeypatch, capfd):
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    task, messages = compile_model()
    task.network(pictures(2))
    (_, told) = messages
    assert told.startswith("warning: torch.compile reached recompile_limit (1) in 'forward'")
    assert told.endswith("TORCH_LOGS=recompiles shows the reasons")
    assert "recompile_limit" not in capfd.readouterr().err
