"""Fill in the fields of an experiment that follow from its data set. No torch."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.experiment.config import Experiment, fit_to_data, load_experiment

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet

STEPS = 4
"""Number of steps per epoch with a shrunk batch."""


def resolve_by_name(name: str) -> Experiment:
    """Return an experiment with every field that can be known without reading images."""
    from vitcli.runner.data.load import describe_data

    experiment = load_experiment(name)
    spec = fit_to_data(experiment.spec, describe_data(experiment.spec.data))
    return Experiment(experiment.name, spec, experiment.path)


def shrink_batch(
    experiment: Experiment,
    spec: ExperimentSpec,
    num_train: int,
    on_message: Callable[[str], None],
) -> ExperimentSpec:
    """Return the spec with a batch of a quarter of the images, if they do not fill its own batch.

    Nothing else changes, such as the learning rate. The batch size stays if the command line sets
    it. It also stays in a study, because variants that differ in it could become equal.
    """
    train = spec.train
    is_fixed = experiment.variant is not None or "train.batch_size" in experiment.typed
    if num_train >= train.batch_size or is_fixed:
        return spec
    # With train.accumulate, the parts of a batch are equal, and batch norm needs some images.
    part = max(num_train // STEPS // train.accumulate, spec.model.min_batch, 1)
    size = part * train.accumulate
    on_message(
        f"note: {num_train:,} training images do not fill a batch of {train.batch_size};"
        f" train.batch_size is now {size}"
    )
    return spec.replace(train=train.replace(batch_size=size))


def resolve(spec: ExperimentSpec, data: "DataSet") -> ExperimentSpec:
    """Return the spec with every field that follows from the data set."""
    spec = fit_to_data(spec, data)
    # A channel with a single level has no standard deviation to divide by; it is only centred.
    std = spec.data.std or tuple(value or 1.0 for value in data.std)
    mean = spec.data.mean or data.mean
    return spec.replace(data=spec.data.replace(mean=mean, std=std))
