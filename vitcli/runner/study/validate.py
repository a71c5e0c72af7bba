"""Validation of files: their fields, and whether the models that they name can be built."""

from typing import Any

from vitcli.core.inspect.cost import count_parameters
from vitcli.plugin import load_target
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import find_experiment, load_experiment, merge_with_bases
from vitcli.runner.experiment.kinds import kind_of
from vitcli.runner.experiment.resolve import resolve_by_name
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import model_sizes
from vitcli.runner.text import quantity


def validate(name: str) -> dict[str, Any]:
    parameters: int | None = None
    is_valid = True
    try:
        path = find_experiment(name)
        kind = kind_of(merge_with_bases(path)[0], path)
        parameters, detail = (load_target(kind.check) if kind else check_experiment)(name)
    except InputError as error:  # such as pictures that are on another machine
        detail = f"the model was not built: {error}"
    except UserError as error:
        is_valid, detail = False, str(error)
    return {"name": name, "ok": is_valid, "detail": detail, "parameters": parameters}


def check_experiment(name: str) -> tuple[int, str]:
    load_experiment(name)
    parameters = count_parameters(abstract_module(resolve_by_name(name).spec))
    return parameters, f"{parameters:,} parameters"


def check_study(name: str) -> tuple[int, str]:
    study = load_study(name)
    sizes = model_sizes(study)
    counts = ", ".join(f"{variant} {size:,}" for variant, size in sizes.items())
    size = f"{quantity(len(sizes), 'variant')} x {quantity(len(study.seeds), 'seed')}"
    return sizes[study.baseline.name], f"a study of {size}; parameters: {counts}"
