"""The Python interface: build, train, predict and look at attention in a few lines."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitcli.core.data.source import DataSet
from vitcli.core.inspect.maps import attention_maps
from vitcli.core.models.build import build_model as build_from
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import (
    AugmentSpec,
    DataSpec,
    ExperimentSpec,
    OptimSpec,
    TrainSpec,
    model_spec,
)
from vitcli.core.tasks.build import task_class
from vitcli.core.train.state import TrainState
from vitcli.runner.data.load import load_data as read_data
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.resolve import resolve_by_name

__all__ = ["attention_maps", "build_model", "fit", "load_data", "load_model"]

SHAPE: dict[str, Any] = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}


def build_model(experiment: str | None = None, *, seed: int = 0, **fields: Any) -> ImageModel:
    """Return a new model, by default a ViT.

    The model maps normalised images (B, C, H, W) to logits (B, num_classes).

    Args:
        experiment: Take the ``model`` part of this experiment; the defaults if None.
        seed: Random seed of the initial weights.
        fields: Any field of ``ModelSpec``. Without an experiment, the defaults are 32x32 RGB images
            and 10 classes.
    """
    spec = resolve_by_name(experiment).spec.model if experiment else model_spec(**SHAPE)
    return build_from(model_spec(**(spec.model_dump() | fields)), seed)


def load_data(
    name: str = "shapes", *, data_dir: str | Path | None = None, **fields: Any
) -> DataSet:
    """Return a data set as uint8 tensors.

    It has ``train``, ``test``, ``class_names`` and ``normalize(pixels)``.

    Args:
        name: shapes, cifar10, cifar100, svhn, fashion-mnist, mnist or imagefolder:PATH.
        data_dir: The only folder to search. If None: VITCLI_DATA, the cache and the web.
        fields: Any other field of ``DataSpec``, such as ``resize=64``.
    """
    return read_data(DataSpec(name=name, **fields), data_dir=Path(data_dir) if data_dir else None)


def fit(
    model: ImageModel,
    data: DataSet,
    *,
    epochs: int,
    batch_size: int = 128,
    optim: OptimSpec | None = None,
    augment: AugmentSpec | None = None,
    label_smoothing: float = 0.0,
    seed: int = 0,
) -> Iterator[dict[str, float]]:
    """Train a model on its device, and yield after each epoch. Writes no files.

    Yields:
        ``epoch`` (from 1), ``train_loss`` and ``test_accuracy``.
    """
    spec = ExperimentSpec(
        model=model.spec,
        data=DataSpec(
            mean=data.mean,
            std=tuple(value or 1.0 for value in data.std),  # a single level has no spread
            augment=augment or AugmentSpec(),
        ),
        optim=optim or OptimSpec(),
        train=TrainSpec(epochs=epochs, batch_size=batch_size, label_smoothing=label_smoothing),
        seed=seed,
    )
    task = task_class(spec)(spec, model)
    state = TrainState(spec, task, data)
    headline = f"test_{spec.task.row.headline.name}"
    for epoch in range(epochs):
        model.train()
        for _ in state.run_epoch(epoch):
            pass
        loss = state.take_means()["loss"]
        model.eval()
        measured = task.measure(task.outputs(model, data.test))
        score = measured[spec.task.row.headline.name]
        yield {"epoch": epoch + 1, "train_loss": loss, headline: score}
