"""Validation of search files, beside that of experiments and studies."""

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import find_experiment
from vitcli.runner.experiment.listing import kind_of
from vitcli.runner.search.definition import load_search
from vitcli.runner.search.judge import measure_sizes
from vitcli.runner.study.validate import Validation
from vitcli.runner.study.validate import validate as validate_other
from vitcli.runner.text import quantity


def validate(name: str) -> Validation:
    """Check the fields of a file, and build its models if the sizes are known."""
    try:
        if kind_of(find_experiment(name)) != "search":
            return validate_other(name)
        search = load_search(name)
        parameters = measure_sizes(search.base, False).parameters
    except ConfigError as error:
        return Validation(name=name, ok=False, detail=str(error))
    fields = quantity(len(search.space.parameters), "field")
    detail = f"a search over {fields}, {quantity(search.num_trials, 'trial')}"
    detail += f"; base: {parameters:,} parameters"
    return Validation(name=name, ok=True, detail=detail, parameters=parameters)
