"""Small tasks on views, for tests."""

from typing import Any

import torch

from tests.core.trainings import data_set, experiment
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec

TASKS: dict[str, dict[str, Any]] = {
    "dino": {"num_prototypes": 16, "hidden_dim": 12, "bottleneck_dim": 8, "teacher_momentum": 0.9},
    "lejepa": {"proj_dim": 6, "hidden_dim": 12, "num_slices": 8},
}


def view_spec(name: str, changes: dict[str, dict[str, Any]] | None = None) -> ExperimentSpec:
    """Return a training of three epochs of four batches; ``changes`` is by section."""
    fields = dict(changes or {})
    fields["optim"] = {"warmup_epochs": 0.0} | fields.get("optim", {})
    fields["model"] = {"pool": "mean"} | fields.get("model", {})
    fields["task"] = {"name": name, "local_size": 8} | TASKS[name] | fields.get("task", {})
    return experiment(fields)


def view_task(name: str, changes: dict[str, dict[str, Any]] | None = None) -> Any:
    spec = view_spec(name, changes)
    kind = task_class(spec)
    return kind(spec, kind.make_module(spec).train())


def a_batch(task: Any, epoch: int = 0) -> dict[str, torch.Tensor]:
    return next(iter(task.batches(data_set(), epoch)))
