"""What is wrong with an experiment, in one line: the place, the field and what was meant."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.rows import choice_of
from vitcli.runner.experiment.places import Place, is_shortcut
from vitcli.runner.experiment.purpose import FILE_FIELDS
from vitcli.runner.experiment.yaml_text import FieldPath
from vitcli.runner.text import closest, did_you_mean

STUDY_FIELDS = ("variants", "seeds", "threads", "tune", "reference", "equivalence_margin", "design")
"""Fields of a file that only a study has; ``StudyFields`` describes them."""


def blame(place: Place, loc: FieldPath, problem: str) -> str:
    """Return a problem with its place in front.

    A problem of the whole experiment (an empty ``loc``) begins with the field to change.
    """
    field = problem.partition(":")[0]
    where = place.where(loc or tuple(field.split(".")))
    return f"{where}: {problem.removeprefix(f'{field}: ') if is_shortcut(where) else problem}"


def describe(
    loc: tuple[int | str, ...],
    kind: str,
    error: Mapping[str, Any],
    raw: Mapping[str, Any] | None = None,
) -> str:
    """Return what is wrong with one field of ``raw``, and what was probably meant."""
    field = ".".join(map(str, loc)) or "experiment"
    if kind == "extra_forbidden":
        return f"unknown field {field!r}{_suggest_field(loc, raw or {})}"
    if kind == "missing":
        return f"{field!r} is missing"
    if kind == "too_short":
        return f"{field}: needs at least {error['ctx']['min_length']}"
    message = error["msg"].removeprefix("Value error, ")
    message = message.removeprefix("Input should be ").strip()
    message = {"dict_type": "a mapping, name: value"}.get(kind, message)
    given = error["input"]
    if kind == "value_error":
        return f"{field}: {message}" if loc else message
    shown = (
        repr(given)
        if isinstance(given, str | int | float | bool | None)
        else "a mapping"
        if isinstance(given, Mapping)
        else "a list"
    )
    return f"{field}: should be {message}, got {shown}"


def _suggest_field(loc: tuple[int | str, ...], raw: Mapping[str, Any]) -> str:
    """Return a suggestion for an unknown field, first from the chosen family, then from others."""
    *group, last = map(str, loc)
    if not group and last in FILE_FIELDS:
        return "; only a file can have it, at its top level"
    if not group and last in STUDY_FIELDS:
        return "; only a study has it, which is a file with 'variants'"
    if not group and last == "search":
        return "; only a file can have it, which 'vitcli search' runs"
    known = [*field_names(raw=raw), *FILE_FIELDS, *STUDY_FIELDS]
    if ".".join((*group, last)) in known:
        return f"; {_chosen(group, raw)} does not have it"
    own = field_names(raw=raw, only_chosen=True)
    for names in (own, known):
        siblings = [name.split(".")[-1] for name in names if name.split(".")[:-1] == group]
        if hint := did_you_mean(last, siblings):
            return hint
    elsewhere = {name.split(".")[-1]: name for name in reversed(known)}
    close = closest(last, elsewhere)
    return f"; did you mean {elsewhere[close]!r}?" if close else ""


def _chosen(group: Sequence[str], raw: Mapping[str, Any]) -> str:
    """Return what decides which fields a group has, such as ``model.family=vit``."""
    spec: type[BaseModel] = ExperimentSpec
    inner: Any = raw
    for name in group:
        field, inner = spec.model_fields[name], inner.get(name)
        choice, spec = choice_of(field), _specs_in(field, inner)[0]
    assert choice is not None, "only a choice has fields of other rows"
    return f"{'.'.join(group)}.{choice.key}={choice.name_of(inner)}"


def field_names(
    spec: type[BaseModel] = ExperimentSpec,
    prefix: str = "",
    raw: Mapping[str, Any] | None = None,
    *,
    only_chosen: bool = False,
) -> list[str]:
    """Return every dotted field of an experiment, for all model families and tasks.

    The fields of the family and task in ``raw`` come first, or alone with ``only_chosen``.
    """
    names: list[str] = []
    for name, field in spec.model_fields.items():
        names.append(prefix + name)
        inner = (raw or {}).get(name)
        kinds = _specs_in(field, inner)
        for kind in kinds[:1] if only_chosen else kinds:
            below = inner if isinstance(inner, Mapping) else None
            names += field_names(kind, f"{prefix}{name}.", below, only_chosen=only_chosen)
    return [*dict.fromkeys(names)]


def _specs_in(field: FieldInfo, raw: Any) -> list[type[BaseModel]]:
    """Return the classes that a field's spec may have, the one in ``raw`` first."""
    choice = choice_of(field)
    if choice is None:
        kinds = get_args(field.annotation) or (field.annotation,)
        return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    first = choice.name_of(raw)
    return [choice.table[name].spec for name in dict.fromkeys((first, *choice.table))]
