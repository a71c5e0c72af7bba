"""A training that Python drives, one epoch at a time, with a model and images from anywhere."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.models.own import GivenModel
from vitcli.core.spec.families import model_spec
from vitcli.core.torch_use import evaluating
from vitcli.core.train.training import Training
from vitcli.runner.errors import ConfigError, DivergedError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.build import new_module, without_memory
from vitcli.runner.experiment.config import SIZES, Experiment
from vitcli.runner.run.folder import RunDir, is_effectively_empty
from vitcli.runner.text import Listener
from vitcli.runner.train.build import settings
from vitcli.runner.train.contract import are_same
from vitcli.runner.train.finish import finish
from vitcli.runner.train.flops import count_operations
from vitcli.runner.train.hooks import TensorBoard
from vitcli.runner.train.prepare import Plan, Request
from vitcli.runner.train.train import open_run
from vitcli.runner.train.trainer import Trainer

Epoch = dict[str, float]


@dataclass(frozen=True, kw_only=True, repr=False)
class FoldData(DataSet):
    """A data set with folds, whose test images are the part of a seed."""

    seed: int


def fitting_model(model: nn.Module, data: DataSet, on_message: Listener) -> ImageModel:
    """Return a model that takes the images of a data set and returns logits of its classes."""
    for value, kind, advice in (
        (model, nn.Module, "build_model(...)"),
        (data, DataSet, "load_data(NAME) or data_set(train, test)"),
    ):
        if not isinstance(value, kind):
            raise ConfigError(f"fit: {type(value).__name__} is no {kind.__name__}; take {advice}")
    sizes = {name: getattr(data, name) for name in SIZES}
    if not isinstance(model, ImageModel):
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(f"fit: {type(model).__name__} has no parameter to train")
        given = GivenModel(model_spec(family="resnet18", **sizes), model)
        pixels = data.test.pixels[:2].to(next(model.parameters()).device)
        given.train(model.training)
        try:
            with torch.enable_grad(), evaluating(given):
                logits = given(data.normalize(pixels).nan_to_num())  # a level without a spread
            if not logits.requires_grad:
                raise ValueError(f"{type(model).__name__} returns logits without a gradient")
        except (ValueError, RuntimeError, TypeError) as error:
            shape = "x".join(map(str, pixels.shape[1:]))
            raise ConfigError(f"fit: images of {shape} (channels first): {error}") from error
        if (logits >= 0).all() and (logits.sum(1) - 1).abs().max() < 1e-4:
            on_message(
                f"note: {type(model).__name__} returns probabilities, and the loss takes logits;"
                " leave out its softmax"
            )
        return given
    for name, theirs in sizes.items():
        if (ours := getattr(model.spec, name)) != theirs:
            raise ConfigError(
                f"fit: the model has {name}={ours}, but data set {data.name} has {theirs};"
                f" use build_model({name}={theirs})"
            )
    return model


def epochs(training: Training) -> Iterator[Epoch]:
    """Train, and yield the numbers of each epoch; write no files."""
    task = training.task
    headline = training.spec.task.row.headline.name
    for epoch in range(training.spec.train.epochs):
        task.module.train()
        with settings(training):
            for _ in training.run_epoch(epoch):
                pass
        loss = training.take_means()["loss"]
        task.module.eval()
        try:
            measured = task.measure(task.outputs(task.module, training.data.test))
        except ValueError as error:
            raise DivergedError(
                f"fit: diverged in epoch {epoch + 1}: {error}; try a lower optim lr"
            ) from error
        yield {"epoch": epoch + 1, "train_loss": loss, f"test_{headline}": measured[headline]}


def saved_epochs(training: Training, folder: Path, on_message: Listener) -> Iterator[Epoch]:
    """Train into a run folder, and yield the numbers of each epoch."""
    run = RunDir(folder)
    spec = training.spec
    headline = spec.task.row.headline.name
    if isinstance(training.task.module, GivenModel):
        raise ConfigError(
            "fit: save needs a model that can be built again; register its class with"
            " @vitcli.parts.model and take build_model(family=...)"
        )
    own_code.refuse_unsaved(spec)
    refuse_changed(training)
    if isinstance(training.data, FoldData) and training.data.seed != spec.seed:
        seed = training.data.seed
        raise ConfigError(
            f"fit: the data has the test images of seed {seed}; a run with another seed would be"
            f" measured on other images: fit(seed={seed})"
        )
    if folder.exists() and not (folder.is_dir() and is_effectively_empty(folder)):
        raise ConfigError(f"fit: {folder} is not empty; choose another folder")
    if training.data.spec is None:
        on_message(
            f"note: {folder} has no images, so vitcli eval cannot measure it; to keep them, write"
            " them with numpy.savez and read them with load_data('npz:FILE')"
        )
    experiment = Experiment(folder.name, spec, folder / "config.yaml")
    command = f"vitcli.fit(save={str(folder)!r})"
    plan = Plan(
        experiment=experiment,
        spec=spec,
        request=Request(command=command, on_message=cache(on_message)),
        run=run,
        data=training.data,
        training=training,
        inexact={"weights": ("of a new model", "of a model in Python")},
    )
    if spec.code:  # it may fail there
        with settings(training), without_memory(spec):
            count_operations(spec, next(training.batches(0)))
    with open_run(plan) as meta, Trainer(plan, meta, (TensorBoard(),)) as trainer:
        trainer.begin()
        while trainer.epoch < trainer.last_epoch:
            training.module.train()
            with settings(training):
                trainer.train_epoch()
            training.module.eval()  # as the caller gets it
            record = trainer.records[-1]
            split = "test" if f"test_{headline}" in record else "val"
            names = ("epoch", "train_loss", f"{split}_{headline}")
            yield {name: record[name] for name in names}
        training.module.eval()
        with settings(training):
            finish(trainer)


def refuse_changed(training: Training) -> None:
    """Refuse a model that is not what its configuration builds, because its run could not be read.

    Both are compared as text, which has the settings of the layers, and on a few images.
    """
    model = training.task.module
    new = new_module(training.spec).to(training.device)
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    has_hooks = any(getattr(part, name) for part in model.modules() for name in hooks)
    ours, theirs = ([p.requires_grad for p in each.parameters()] for each in (model, new))
    is_same = (repr(model), ours) == (repr(new), theirs) and not has_hooks
    if is_same:
        try:
            new.load_state_dict(model.state_dict())
            with settings(training):
                is_same = are_same(training.task, model, new, training.data.test[:8])
        except RuntimeError:  # of other shapes
            is_same = False
    if not is_same:
        raise ConfigError(
            "fit: save needs the model as build_model made it; this one has other layers, hooks,"
            " settings or frozen parts, so that the run would hold another. Register its class with"
            " @vitcli.parts.model, or train without save"
        )
