"""Whether an experiment or study file is sound: its fields are valid, its models can be built."""

from dataclasses import dataclass

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import (
    find_experiment,
    load_experiment,
)
from vitcli.runner.experiment.listing import is_study
from vitcli.runner.experiment.resolve import resolved
from vitcli.runner.study.definition import load_study, model_sizes


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether an experiment file is sound; ``detail`` says what is wrong, or what was built."""

    name: str
    ok: bool
    detail: str
    parameters: int | None = None


def validate(name: str) -> Verdict:
    """Check a file field by field and build its model where the sizes are known."""
    from vitcli.core.inspect.cost import count_parameters
    from vitcli.runner.experiment.build import abstract_module

    try:
        path = find_experiment(name)
        if is_study(path):
            return _validate_study(name)
        load_experiment(name)
        parameters = count_parameters(abstract_module(resolved(name).spec))
    except ConfigError as error:
        return Verdict(name=name, ok=False, detail=str(error))
    except InputError as error:
        detail = f"its fields; the model was not built: {error}"
        return Verdict(name=name, ok=True, detail=detail)
    detail = f"{parameters:,} parameters"
    return Verdict(name=name, ok=True, detail=detail, parameters=parameters)


def _validate_study(name: str) -> Verdict:
    study = load_study(name)
    sizes = model_sizes(study)
    counts = ", ".join(f"{variant} {size:,}" for variant, size in sizes.items())
    detail = f"a study of {len(sizes)} variants x {len(study.seeds)} seeds; parameters: {counts}"
    return Verdict(name=name, ok=True, detail=detail, parameters=sizes[study.baseline.name])
