"""Fill in the fields of an experiment that follow from its data set. No torch."""

from typing import TYPE_CHECKING

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.experiment.config import Experiment, fit_to_data, load_experiment

if TYPE_CHECKING:
    from vitcli.core.data.source import DataSet


def resolve_by_name(name: str) -> Experiment:
    """Return an experiment with every field that can be known without reading images."""
    from vitcli.runner.data.load import describe_data

    experiment = load_experiment(name)
    spec = fit_to_data(experiment.spec, describe_data(experiment.spec.data))
    return Experiment(experiment.name, spec, experiment.path)


def resolve(spec: ExperimentSpec, data: "DataSet") -> ExperimentSpec:
    """Return the spec with every field that follows from the data set."""
    spec = fit_to_data(spec, data)
    # A channel with a single level has no standard deviation to divide by; it is only centred.
    std = spec.data.std or tuple(value or 1.0 for value in data.std)
    mean = spec.data.mean or data.mean
    return spec.replace(data=spec.data.replace(mean=mean, std=std))
