"""Small trainings for tests of the core."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tests.core.specs import BASE
from vitcli.core.data.batches import Batch, augmented_batch
from vitcli.core.data.source import DataSet, Images
from vitcli.core.objectives.classify import Classify
from vitcli.core.objectives.objective import Task, task_class
from vitcli.core.spec import AugmentSpec, ExperimentSpec
from vitcli.core.train.training import Training

HALF = (0.5, 0.5, 0.5)
SIZES = BASE.model_dump()
IMAGES = ("img_size", "in_chans", "num_classes")


def data_set(count: int = 64) -> DataSet:
    """Return random images, with labels that follow from them, and as a target their mean level."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)
    levels = pixels.flatten(1).float().mean(1)
    images = Images(pixels, levels.argsort() % 5, {"target": (levels - 127)[:, None]})
    facts: dict[str, Any] = {"name": "random", "class_names": tuple("abcde"), "data_hash": ""}
    return DataSet(**facts, train=images, test=images, mean=HALF, std=HALF)


def epoch_batches(
    images: Images,
    augment: AugmentSpec,
    *,
    mean: Sequence[float] = HALF,
    std: Sequence[float] = HALF,
    batch_size: int = 16,
    seed: int = 0,
    epoch: int = 0,
    prepare: Callable[..., Batch] = augmented_batch,
) -> list[Batch]:
    names = tuple(map(str, range(int(images.labels.max()) + 1)))
    fields = {"mean": tuple(mean), "std": tuple(std), "augment": augment}
    train = {"batch_size": batch_size}
    spec = ExperimentSpec.model_validate({"seed": seed, "data": fields, "train": train})
    task = Classify(spec, torch.nn.Linear(1, 1).to(images.pixels.device))
    task.augmented_batch = prepare
    data = replace(data_set(1), class_names=names, train=images)
    return list(task.batches(data, epoch))


def experiment(changes: dict[str, dict[str, Any]]) -> ExperimentSpec:
    """Return a training of four batches of 16 images an epoch, with the sections changed."""
    model = changes.get("model", {})
    has_width = model.get("family") not in ("resnet18", "convnet")
    sizes = SIZES if has_width else {name: SIZES[name] for name in IMAGES}
    fields = {
        "model": sizes | model,
        "data": {
            **{"mean": HALF, "std": HALF, "class_names": tuple("abcde")},
            "augment": changes.get("augment", {}),
            **changes.get("data", {}),
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
    **options: Any,
) -> Training:
    task = new_task(changes, device)
    task.encoder(task.module).grad_checkpointing = task.spec.train.grad_checkpointing
    return Training(task.spec, task, data_set().to(device), autocast, **options)


def of_parameters(
    module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], field: str
) -> dict[str, Any]:
    """Return a field of the group of each parameter that the optimisers hold."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        names[id(parameter)]: group[field]
        for each in optimizers
        for group in each.param_groups
        for parameter in group["params"]
    }


def training_on(
    task: Task, batches: Sequence[Batch], fields: dict[str, Any], **options: Any
) -> Training:
    """Return a training of one epoch on batches, with a constant learning rate.

    ``fields`` are fields of ``optim`` and ``train``, such as ``optim.max_grad_norm``.
    """
    sections: dict[str, Any] = {
        "optim": {"lr": 0.01, "schedule": "constant", "warmup_epochs": 0.0},
        "train": {"batch_size": 1, "limit_batches": len(batches)},
    }
    for name, value in fields.items():
        section, field = name.split(".")
        sections[section][field] = value
    spec = ExperimentSpec.model_validate(sections)
    data = data_set(spec.train.batch_size * len(batches))
    vars(task).update(batches=lambda _data, _epoch, first: iter(batches[first:]), has_rows=False)
    return Training(spec, task, data, **options)
