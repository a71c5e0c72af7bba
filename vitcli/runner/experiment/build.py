"""The module that an experiment trains, with or without memory for its weights."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.objectives.objective import task_class
from vitcli.core.ops.backend import PLAIN, UsesBackend
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, OwnCodeError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.torch_state import unchanged


def new_module(spec: ExperimentSpec) -> nn.Module:
    """Return everything that is trained, with the initial weights of the experiment's seed."""
    try:
        with torch.random.fork_rng(devices=[]):
            # Layers of a task that draw from torch's own generator depend on the seed, too.
            torch.manual_seed(spec.seed)
            if not spec.code:
                return task_class(spec).make_module(spec)
            used = own_code.code_of_parts(spec)
            own_code.require({name: spec.code.get(name, "") for name in used})
            with unchanged(", ".join(sorted(spec.code))):
                return task_class(spec).make_module(spec)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    except TypeError as error:  # an own part that takes other arguments
        if not spec.code or own_code.locate_in_own_code(error):
            raise
        raise OwnCodeError(f"{', '.join(sorted(spec.code))}: {error}") from error


def filled_module(spec: ExperimentSpec, data: DataSet) -> nn.Module:
    """Return the module of ``new_module``, with the buffers that follow from the data."""
    module = new_module(spec)
    try:
        task_class(spec).read_data(module, spec, data)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return module


def abstract_module(spec: ExperimentSpec) -> nn.Module:
    """Return everything that is trained on the device ``meta``: shapes without memory."""
    with without_memory(spec), torch.device("meta"):
        return new_module(spec)


def abstract_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a module like ``abstract_module``, which computes with plain functions."""
    copies: dict[int, Any] = {
        id(parameter): nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for parameter in module.parameters()
    }
    copies |= {id(buffer): buffer.to("meta") for buffer in module.buffers()}
    layers = (layer for layer in module.modules() if isinstance(layer, UsesBackend))
    copies |= {id(layer.backend): PLAIN for layer in layers}
    return copy.deepcopy(module, copies)


@contextmanager
def with_gradient(spec: ExperimentSpec) -> Iterator[None]:
    """Say that a loss of own code, of which the block takes the gradient, has none."""
    try:
        yield
    except RuntimeError as error:
        is_own = spec.code and not own_code.locate_in_own_code(error)
        if not is_own or "does not require grad" not in str(error):
            raise
        raise OwnCodeError(
            f"{', '.join(sorted(spec.code))}: the loss has no gradient; compute it from the outputs"
            " of the model, without argmax, comparisons, detach and no_grad"
        ) from error


@contextmanager
def without_memory(spec: ExperimentSpec) -> Iterator[None]:
    """Say what an error of own code on the device ``meta``, or in a copy of it, is about."""
    try:
        with with_gradient(spec):
            yield
    except TypeError as error:
        if not spec.code or "pickle" not in str(error):
            raise
        raise OwnCodeError(
            f"{', '.join(sorted(spec.code))}: {error}; vitcli copies a model, so keep such objects"
            " out of it"
        ) from error
    except RuntimeError as error:
        if not spec.code or "meta" not in str(error):
            raise
        where = own_code.locate_in_own_code(error) or ", ".join(sorted(spec.code))
        raise OwnCodeError(
            f"{where}; vitcli counts operations with a model without memory, on torch's device"
            " meta; build all layers in __init__, and no tensor on a device of your choice"
        ) from error


def encoder_of(spec: ExperimentSpec, module: nn.Module) -> ImageModel:
    return task_class(spec).encoder(module)
