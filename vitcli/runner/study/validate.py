"""Validation of experiment and study files: their fields, and whether their models can be built."""

from dataclasses import dataclass

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import (
    find_experiment,
    load_experiment,
)
from vitcli.runner.experiment.listing import is_study
from vitcli.runner.experiment.resolve import resolve_by_name
from vitcli.runner.experiment.sizes import fit_to_data
from vitcli.runner.study.definition import Study, load_study
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


def model_sizes(study: Study) -> dict[str, int]:
    """Return variant -> number of parameters.

    Every model is built without memory, so mistakes are found before training.

    Raises:
        ConfigError: A variant does not fit its data set.
    """
    from vitcli.core.inspect.cost import count_parameters
    from vitcli.runner.data.load import describe_data
    from vitcli.runner.experiment.build import abstract_module

    sizes: dict[str, int] = {}
    for variant in study.variants:
        try:
            for _, spec in variant.settings:
                fitted = fit_to_data(spec, describe_data(spec.data))
                sizes[variant.name] = count_parameters(abstract_module(fitted))
        except ConfigError as error:
            raise ConfigError(f"{study.path}: variant {variant.name!r}: {error}") from error
    return sizes
