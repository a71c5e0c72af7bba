"""The settings in which a run differs from its experiment."""

from collections import Counter
from functools import cache
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.experiment.diff import differences, with_data_defaults
from vitcli.runner.experiment.listing import base_spec
from vitcli.runner.experiment.problems import field_names
from vitcli.runner.experiment.yaml_text import format_value

HIDDEN = ("seed", "data.name", "code", "task.teacher.sha256")
"""Fields that a list of runs shows anyway, or that follow from others."""


def differing_fields(
    spec: ExperimentSpec, meta: dict[str, Any], references: dict[str, ExperimentSpec]
) -> dict[str, Any]:
    """Return the fields in which a run differs from its experiment: dotted field -> value.

    ``references`` holds the spec that each experiment's runs are compared with. A missing one is
    added: the experiment's file, or the first run if there is no such file.
    """
    name = meta.get("experiment")
    if not isinstance(name, str):
        return {}
    if name not in references:
        references[name] = base_spec(name) or spec
    found = differences(with_data_defaults(references[name], spec, meta), spec)
    foreign = {f"model.{name}" for name in type(references[name].model).model_fields}
    foreign -= {f"model.{name}" for name in type(spec.model).model_fields}
    return {
        field: value
        for field, (_, value) in found.items()
        if field not in HIDDEN and field not in foreign
    }


def short_setting(field: str, value: Any) -> str:
    """Return a setting such as ``depth=4``, without spaces between the numbers of a list.

    Numbers have four significant digits. The last part of the field is enough, unless another
    field ends with the same word.
    """
    last = field.rpartition(".")[2]
    name = last if _last_parts()[last] == 1 else field
    text = format_value(_rounded(value))
    return f"{name}={text if isinstance(value, str) else text.replace(' ', '')}"


def _rounded(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def _last_parts() -> Counter[str]:
    return Counter(field.rpartition(".")[2] for field in field_names())
