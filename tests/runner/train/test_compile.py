"""torch.compile makes one graph of a model's training, and one for each training of a process."""

from typing import Any

import pytest
import torch
import torch._dynamo

from tests.core.specs import REQUIRED, build, changed, pictures
from vitcli.core.models.image_model import build_model
from vitcli.core.objectives.classify import Classify
from vitcli.core.spec import ExperimentSpec, TrainSpec
from vitcli.core.spec.slots import ATTENTIONS
from vitcli.runner.train.build import compile_task

CASES: dict[str, dict[str, Any]] = {
    **{name: {"family": name} | REQUIRED[name] for name in ("swin", "coatnet", "pit")},
    **{name: {"attention": name, "depth": 1} for name in ATTENTIONS},
    "dropout": {"drop_path": 0.1, "proj_drop": 0.1, "attn_drop": 0.1, "pos_embed": "rope2d"},
    "scores": {"pos_embed": "relative", "attn_scale": "learned", "attn_clamp": True},
    "locality": {"attn_mask_diagonal": True, "ffn": "depthwise", "patch_embed": "shifted"},
    "batch norm": {"norm": "batch_norm"},
}
OFTEN = ("swin", "recomputed")
"""Cases that are not left to ``-m ci``."""
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


@pytest.mark.parametrize(
    "case",
    [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.ci)
        for name in [*CASES, "recomputed"]
    ],
)
def test_a_training_is_one_graph_and_an_evaluation_another(shapes, case):
    model = build_model(changed(**CASES.get(case, {}))).train()
    model.grad_checkpointing = case == "recomputed"
    compiled = torch.compile(model, fullgraph=True)  # a graph break raises an error
    for _ in range(2):
        compiled(pictures(4).float()).sum().backward()
    assert len(shapes) == 1
    model.eval()
    with torch.inference_mode():
        compiled(pictures(4).float())
    assert len(shapes) == 2


def compile_model(batch_size: int = 4, **fields) -> tuple[Classify, list[str]]:
    model = build(depth=1, **fields).train()
    spec = ExperimentSpec(model=model.spec, train=TrainSpec(batch_size=batch_size, compile=True))
    batch = {"images": pictures(batch_size), "targets": torch.zeros(batch_size, dtype=torch.long)}
    task = Classify(spec, model)
    messages: list[str] = []
    assert compile_task(task, [batch], None, messages.append)
    return task, messages


def test_every_variant_of_a_study_is_compiled(shapes):
    with torch._dynamo.config.patch(accumulated_recompile_limit=len(VARIANTS) - 1):
        for count, fields in enumerate(VARIANTS, start=1):
            assert compile_model(**fields)[1] == ["compiling the model ..."]
            assert len(shapes) == count, fields


def test_every_batch_size_is_compiled_for_its_own_shape(shapes):
    for size in (4, 6):
        compile_model(size)
        assert shapes[-1][0] == size
        assert type(shapes[-1][0]) is int
