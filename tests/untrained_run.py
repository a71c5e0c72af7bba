"""Run folders with random weights, which no training has to make."""

import json
from pathlib import Path
from typing import Any

import torch

from vitcli.core.spec import ExperimentSpec, ModelSpec, model_spec
from vitcli.runner.experiment.build import new_module
from vitcli.runner.experiment.config import model_hash
from vitcli.runner.run.checkpoint import Checkpoint, save_checkpoint
from vitcli.runner.run.folder import RunDir

DATA = {
    "name": "shapes",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.25, 0.3),
    "class_names": ("ant", "bee", "cat", "dog", "eel"),
}


def untrained_run(folder: Path, model: ModelSpec, **fields: Any) -> RunDir:
    """Return a finished run of a model for five classes, with random weights and statistics.

    ``fields`` are other parts of the experiment, such as ``data`` or ``task``.
    """
    spec = ExperimentSpec.model_validate({"model": model, "data": DATA} | fields)
    module = new_module(spec)
    with torch.no_grad():
        for parameter in module.parameters():
            scale = 0.2 if parameter.ndim < 2 else 0.02  # biases and norms are 0 or 1 otherwise
            parameter.add_(scale * torch.randn_like(parameter))
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.5, 1.5)
    run = RunDir(folder)
    run.create(spec)
    tensors = {f"model.{name}": tensor for name, tensor in module.state_dict().items()}
    state = {"weights": "model", "model": model_hash(spec.model)}
    save_checkpoint(run.checkpoints, Checkpoint(0, tensors, state))
    run.set_status("finished", 0)
    (folder / "result.json").write_text(json.dumps({"test_accuracy": 0.8125, "num_test": 96}))
    return run


def resnet() -> ModelSpec:
    return model_spec(family="resnet18", img_size=(16, 16), in_chans=3, num_classes=5)


def images(count: int = 4) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16)
