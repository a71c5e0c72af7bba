"""Validation of experiment and study files: their fields, and whether their models can be built."""

from dataclasses import dataclass

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import (
    find_experiment,
    load_experiment,
)
from vitcli.runner.experiment.listing import is_study
from vitcli.runner.experiment.resolve import resolve_by_name
from vitcli.runner.study.definition import load_study, model_sizes
from vitcli.runner.text import quantity


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Whether an experiment file is valid. ``detail`` gives the problem or what was built."""

    name: str
    ok: bool
    detail: str
    parameters: int | None = None


def validate(name: str) -> Validation:
    """Check the fields of a file, and build its model if the sizes are known."""
    from vitcli.core.inspect.cost import count_parameters
    from vitcli.runner.experiment.build import abstract_module

    try:
        path = find_experiment(name)
        if is_study(path):
            return _validate_study(name)
        load_experiment(name)
        parameters = count_parameters(abstract_module(resolve_by_name(name).spec))
    except ConfigError as error:
        return Validation(name=name, ok=False, detail=str(error))
    except InputError as error:
        detail = f"the fields are valid; the model was not built: {error}"
        return Validation(name=name, ok=True, detail=detail)
    detail = f"{parameters:,} parameters"
    return Validation(name=name, ok=True, detail=detail, parameters=parameters)


def _validate_study(name: str) -> Validation:
    study = load_study(name)
    sizes = model_sizes(study)
    counts = ", ".join(f"{variant} {size:,}" for variant, size in sizes.items())
    size = f"{quantity(len(sizes), 'variant')} x {quantity(len(study.seeds), 'seed')}"
    detail = f"a study of {size}; parameters: {counts}"
    return Validation(name=name, ok=True, detail=detail, parameters=sizes[study.baseline.name])
