"""Small trainings for tests of the core."""

from typing import Any

import torch

from tests.core.specs import BASE
from vitcli.core.data.source import DataSet, Images
from vitcli.core.models.build import build_model
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.classify import Classify
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


def train_state(
    changes: dict[str, dict[str, Any]],
    device: str = "cpu",
    autocast: torch.dtype | None = None,
    **options: Any,
) -> TrainState:
    """Return a new training: four batches of 16 images an epoch, with the sections changed."""
    train = {"batch_size": 16, "epochs": 3} | changes.get("train", {})
    fields = {
        "model": SIZES | changes.get("model", {}),
        "data": {"mean": HALF, "std": HALF, "augment": changes.get("augment", {})},
        "optim": {"warmup_epochs": 1.0} | changes.get("optim", {}),
        "train": train,
    }
    spec = ExperimentSpec.model_validate(fields)
    module = build_model(spec.model, 0).to(device).train()
    module.grad_checkpointing = spec.train.grad_checkpointing
    return TrainState(spec, Classify(spec, module), data_set().to(device), autocast, **options)
