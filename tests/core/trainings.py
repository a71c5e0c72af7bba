"""Small trainings for tests of the core."""

from typing import Any

import torch

from tests.core.specs import BASE
from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.state import TrainState

HALF = (0.5, 0.5, 0.5)
SIZES = BASE.model_dump()


def data_set(count: int = 64) -> DataSet:
    """Return random images, with labels that follow from them."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)
    images = Images(pixels, pixels.flatten(1).float().mean(1).argsort() % 5)
    return DataSet(
        name="random",
        class_names=tuple("abcde"),
        train=images,
        test=images,
        mean=HALF,
        std=HALF,
        data_hash="",
    )


def experiment(changes: dict[str, dict[str, Any]]) -> ExperimentSpec:
    """Return a training of four batches of 16 images an epoch, with the sections changed."""
    fields = {
        "model": SIZES | changes.get("model", {}),
        "data": {
            **{"mean": HALF, "std": HALF, "class_names": tuple("abcde")},
            "augment": changes.get("augment", {}),
        },
        "optim": {"warmup_epochs": 1.0} | changes.get("optim", {}),
        "train": {"batch_size": 16, "epochs": 3} | changes.get("train", {}),
        "task": changes.get("task", {}),
    }
    return ExperimentSpec.model_validate(fields)


def new_task(changes: dict[str, dict[str, Any]], device: str = "cpu") -> Task:
    """Return the task of ``experiment``, whose module has the weights of seed 0."""
    spec = experiment(changes)
    build = task_class(spec)
    return build(spec, build.make_module(spec).to(device).train())


def train_state(
    changes: dict[str, dict[str, Any]],
    device: str = "cpu",
    autocast: torch.dtype | None = None,
    data: DataSet | None = None,
    **options: Any,
) -> TrainState:
    """Return a new training of ``experiment``."""
    task = new_task(changes, device)
    task.encoder(task.module).grad_checkpointing = task.spec.train.grad_checkpointing
    data = data_set() if data is None else data
    return TrainState(task.spec, task, data.to(device), autocast, **options)
