"""Graphs that the compiler's front end makes, counted in a process on the stub GPU.

No kernel is generated: the graphs run as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vitcli.core.spec import FAMILIES
from vitcli.core.spec.slots import ATTENTIONS, SLOTS
from vitcli.core.torch_use import autocast_to
from vitcli.runner.experiment.config import load_experiment
from vitcli.runner.speed.workload import Workload, make_workload
from vitcli.runner.text import ignore_message
from vitcli.runner.train import build as compiling

Fields = dict[str, Any]
BATCH = 8
SMALL = {"train.batch_size": BATCH, "train.precision": "bf16", "optim.name": "adamw"}
TINY = {"model.depth": 1, "model.embed_dim": 32, "model.num_heads": 2}
DROPPED = {"model.drop_path": 0.1, "model.proj_drop": 0.1, "model.attn_drop": 0.1}
FAMILY_FIELDS: dict[str, Fields] = {
    "vit": TINY,
    "swin": {"model.depths": [2, 2]},
    "coatnet": {"model.depths": [1, 1, 1]},
    "pit": {"model.depths": [1, 1]},
}
"""Fields that make a family's model small; tracing takes seconds."""
OTHERS: dict[str, Fields] = {
    "dropout everywhere": DROPPED,
    "rotated positions": {"model.pos_embed": "rope2d"},
    "relative positions, learned scale": {
        "model.pos_embed": "relative",
        "model.attn_scale": "learned",
    },
    "clamped scores, batch norm": {"model.attn_clamp": True, "model.norm": "batch_norm"},
    "locality": {
        "model.attn_mask_diagonal": True,
        "model.ffn": "depthwise",
        "model.patch_embed": "shifted",
    },
    "checkpointing": {"train.grad_checkpointing": True},
}


class Graphs:
    """A backend of torch.compile that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0
        self.symbolic = 0
        """Number of graphs with a size that is a variable."""

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.count += 1
        self.symbolic += any(isinstance(each, torch.SymInt) for each in inputs)
        return graph.forward


def make(changes: Fields) -> Workload:
    return make_workload(load_experiment("quickstart", SMALL | changes), "cuda", ignore_message)


def images(work: Workload, count: int = BATCH) -> Tensor:
    return torch.randn(count, *work.image_shape, device=work.device)


def trace_cases() -> dict[str, Fields]:
    """Return a model of each family and with each attention, and some combinations."""
    return {
        **{f"family {row}": {"model.family": row} | FAMILY_FIELDS.get(row, {}) for row in FAMILIES},
        **{f"attention {row}": TINY | {"model.attention": row} for row in ATTENTIONS},
        **{label: TINY | fields for label, fields in OTHERS.items()},
    }


def trace(changes: Fields) -> list[int]:
    """Return the number of graphs after two training steps, and after an evaluation too.

    A graph break raises an error.
    """
    torch._dynamo.reset()
    graphs, work = Graphs(), make(changes)
    module = work.built.task.module
    network = torch.compile(module, backend=graphs, fullgraph=True)
    for _ in range(2):
        with autocast_to(work.device, work.built.autocast):
            network(images(work)).float().sum().backward()
    trained = graphs.count
    module.eval()
    with torch.inference_mode():
        network(images(work))
    return [trained, graphs.count]


def trace_all() -> dict[str, Any]:
    """Return the counts of ``trace`` for each case, or the error of its trace."""
    found: dict[str, Any] = {}
    for label, changes in trace_cases().items():
        try:
            found[label] = trace(changes)
        except Exception as error:
            found[label] = f"{type(error).__name__}: {error}"[:400]
    return found


def variants() -> dict[str, Fields]:
    """Return variants of the quickstart: the last row of each slot, and another batch size."""
    found = {"batch size": TINY | {"train.batch_size": 2 * BATCH}, "none": TINY}
    for slot, table in SLOTS.items():
        row = list(table)[-1]
        attention = {"model.attention": "linformer"} if slot == "linformer_share" else {}
        found[f"{slot} {row}"] = TINY | {f"model.{slot}": row} | attention
    return found


def train_variants() -> dict[str, list[int]]:
    """Compile variants one after the other, as a worker of a study does, and train two steps.

    Return for each the number of graphs, and of graphs with a symbolic size. A limit is lowered, so
    that a few variants stand for hundreds.
    """
    found: dict[str, list[int]] = {}
    compiler = torch.compile
    torch._dynamo.config.accumulated_recompile_limit = 10
    for label, fields in variants().items():
        graphs, work = Graphs(), make(fields)

        def counted(module: Any, graphs: Graphs = graphs, **options: Any) -> Any:
            options.pop("mode", None)  # only with the default backend
            return compiler(module, **(options | {"backend": graphs}))

        torch.compile = counted  # type: ignore[assignment]
        try:
            batches = [next(work.batches()) for _ in range(2)]
            compiling.compile_task(work.built.task, batches, work.built.autocast, ignore_message)
            for batch in batches:
                with autocast_to(work.device, work.built.autocast):
                    work.built.task.losses(batch)["loss"].backward()
        finally:
            torch.compile = compiler
        found[label] = [graphs.count, graphs.symbolic]
    return found
