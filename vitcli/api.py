"""The Python interface: build, train, predict and look inside, in a few lines each."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vitcli.core.data.batches import eval_batches, num_batches, train_batches
from vitcli.core.data.source import DataSet
from vitcli.core.inspect.maps import attention_maps
from vitcli.core.models.build import build_model as build_from
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import AugmentSpec, DataSpec, ModelSpec, OptimSpec
from vitcli.core.tasks.classify import Classify
from vitcli.core.train.evaluate import compute_logits, score
from vitcli.core.train.fit import fit as fit_steps
from vitcli.core.train.optim import build_optimizers
from vitcli.core.train.schedule import lr_factor
from vitcli.runner.data.load import load_data as read_data
from vitcli.runner.evaluate.weights import load_model
from vitcli.runner.experiment.resolve import resolved

__all__ = ["attention_maps", "build_model", "fit", "load_data", "load_model"]

SHAPE: dict[str, Any] = {"img_size": (32, 32), "in_chans": 3, "num_classes": 10}


def build_model(experiment: str | None = None, *, seed: int = 0, **fields: Any) -> ImageModel:
    """A new model, (B, C, H, W) normalised images -> (B, num_classes) logits; a ViT by default.

    Args:
        experiment: Take the ``model`` part of this experiment; the defaults unless given.
        seed: Of the initial weights.
        fields: Any field of ``ModelSpec``. Without an experiment, images are 32x32 RGB and
            classes ten unless set.
    """
    spec = resolved(experiment).spec.model if experiment else ModelSpec(**SHAPE)
    return build_from(spec.replace(**fields), seed)


def load_data(
    name: str = "shapes", *, data_dir: str | Path | None = None, **fields: Any
) -> DataSet:
    """A data set as uint8 tensors: ``train``, ``test``, ``class_names``, ``normalize(pixels)``.

    Args:
        name: shapes, cifar10, cifar100, svhn, fashion-mnist, mnist or imagefolder:PATH.
        data_dir: The only place to search; VITCLI_DATA, the cache and the web unless given.
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
    """Train where model and data are, yielding after each epoch; nothing is written.

    Yields:
        ``epoch`` (from 1), ``train_loss`` and ``test_accuracy``.
    """
    optim, augment = optim or OptimSpec(), augment or AugmentSpec()
    steps = num_batches(len(data.train), batch_size)
    optimizers = build_optimizers(model, optim)

    def factor(step: int) -> float:
        return lr_factor(
            step,
            schedule=optim.schedule,
            warmup_steps=round(optim.warmup_epochs * steps),
            num_steps=epochs * steps,
            min_ratio=optim.min_lr_ratio,
        )

    for epoch in range(epochs):
        batches = train_batches(
            data.train,
            augment,
            mean=data.mean,
            std=data.std,
            num_classes=data.num_classes,
            batch_size=batch_size,
            seed=seed,
            epoch=epoch,
        )
        model.train()
        taken = fit_steps(
            Classify(model, label_smoothing, seed),
            batches,
            optimizers,
            factor,
            seed=seed,
            first_step=epoch * steps,
            max_grad_norm=optim.max_grad_norm,
        )
        losses = [step.scalars["loss"] for step in taken]
        test = eval_batches(data.test, mean=data.mean, std=data.std, batch_size=500)
        scores = score(compute_logits(model, test), data.test.labels)
        model.eval()
        loss = torch.stack(losses).mean().item()
        yield {"epoch": epoch + 1, "train_loss": loss, "test_accuracy": scores.accuracy}
