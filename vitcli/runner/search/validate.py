"""Validation of files: their fields, and whether the models that they name can be built."""

from typing import Any

from vitcli.core.inspect.cost import count_parameters
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.experiment.build import abstract_module
from vitcli.runner.experiment.config import find_experiment, load_experiment
from vitcli.runner.experiment.listing import kind_of
from vitcli.runner.experiment.resolve import resolve_by_name
from vitcli.runner.search.definition import load_search
from vitcli.runner.study.definition import load_study
from vitcli.runner.study.plan import model_size, model_sizes
from vitcli.runner.text import quantity


def validate(name: str) -> dict[str, Any]:
    parameters: int | None = None
    is_valid = True
    try:
        kind = kind_of(find_experiment(name))
        if kind == "study":
            study = load_study(name)
            sizes = model_sizes(study)
            parameters = sizes[study.baseline.name]
            counts = ", ".join(f"{variant} {size:,}" for variant, size in sizes.items())
            size = f"{quantity(len(sizes), 'variant')} x {quantity(len(study.seeds), 'seed')}"
            detail = f"a study of {size}; parameters: {counts}"
        elif kind == "search":
            search = load_search(name)
            parameters = model_size(search.base)
            size = f"{len(search.fields.space)} fields, {quantity(search.num_trials, 'trial')}"
            detail = f"a search over {size}; base: {parameters:,} parameters"
        else:
            load_experiment(name)
            parameters = count_parameters(abstract_module(resolve_by_name(name).spec))
            detail = f"{parameters:,} parameters"
    except InputError as error:  # such as pictures that are on another machine
        detail = f"the model was not built: {error}"
    except UserError as error:
        is_valid, detail = False, str(error)
    return {"name": name, "ok": is_valid, "detail": detail, "parameters": parameters}
