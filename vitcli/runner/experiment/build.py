"""The model of an experiment, with or without memory for its weights."""

import torch

from vitcli.core.models.build import build_model
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError


def new_model(spec: ExperimentSpec) -> ImageModel:
    """Return the model with the initial weights of the experiment's seed.

    Raises:
        ConfigError: The parts of the model do not fit together.
    """
    try:
        return build_model(spec.model, spec.seed)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error


def build_abstract(spec: ExperimentSpec) -> ImageModel:
    """Return the model on the device ``meta``: shapes without memory.

    Raises:
        ConfigError: The parts of the model do not fit together.
    """
    with torch.device("meta"):
        return new_model(spec)
