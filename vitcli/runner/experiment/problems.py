"""What is wrong with an experiment, in one line: the place, the field and what was meant."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.own import FIELDS, NEEDS_CODE
from vitcli.core.spec.rows import choice_of, table_of
from vitcli.runner.experiment import yaml_text
from vitcli.runner.experiment.kinds import FILE_KINDS
from vitcli.runner.text import closest, did_you_mean

STUDY_FIELDS = (
    *("variants", "seeds", "threads", "tune", "reference", "equivalence_margin", "design"),
    "equal_compute",
)
"""Fields of a file that only a study has; ``StudyFields`` describes them."""
FORMS = {
    "dict_type": "a mapping, name: value",
    "bool_type": "true or false",
    "tuple_type": "a list, such as [1, 2]",
}
"""Type of an error in pydantic -> the form that a value needs."""
KINDS = {"int": "an integer", "float": "a number", "str": "text"}
"""Name that pydantic adds to the place of an error in a field of several types -> its form."""


def with_place(place: yaml_text.Place, loc: yaml_text.FieldPath, problem: str) -> str:
    """Return a problem with its place in front.

    A problem of the whole experiment (an empty ``loc``) begins with the field to change.
    """
    field = problem.partition(":")[0]
    where = place.where(loc or tuple(field.split(".")))
    typed = [item for source in getattr(place, "sources", ()) for item in source.items()]
    options = [option for name, option in typed if f"{name}.".startswith(f"{field}.")]
    if where in options and yaml_text.is_typed(where) and where != yaml_text.SET:  # it names it
        problem = problem.removeprefix(f"{field}: ")
    return f"{where}: {problem}"


def describe(
    loc: tuple[int | str, ...],
    kind: str,
    error: Mapping[str, Any],
    raw: Mapping[str, Any] | None = None,
    *,
    in_file: bool = True,
    of_function: bool = False,
) -> str:
    """Return what is wrong with one field of ``raw``, and what was probably meant.

    With ``of_function``, the field is an argument in Python, beside which no other group can be.
    """
    several = loc and loc[-1] in KINDS and _field_at(loc) is None and _field_at(loc[:-1])
    if several:
        loc = loc[:-1]
    field = ".".join(map(str, loc)) or "experiment"
    if kind == "extra_forbidden":
        hint = _suggest_field(loc, raw or {}, in_file=in_file, of_function=of_function)
        return f"unknown field {field!r}{hint}"
    if kind == "missing":
        return f"{field!r} is missing"
    if kind == "too_short":
        return f"{field}: needs at least {error['ctx']['min_length']}"
    message = error["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{field}: {message}" if loc else message
    message = FORMS.get(kind) or message.removeprefix("Input should be ").strip()
    if several:
        names = (getattr(form, "__name__", "") for form in get_args(several.annotation))
        message = " or ".join(KINDS[name] for name in names if name in KINDS)
    given = error["input"]
    shown = "a mapping" if isinstance(given, Mapping) else "a list"
    if isinstance(given, str | int | float | bool | None):
        shown = repr(given)
    return f"{field}: should be {message}, got {shown}{_suggest_value(loc, kind, given)}"


def _suggest_value(loc: tuple[int | str, ...], kind: str, given: Any) -> str:
    field = _field_at(loc)
    name = ".".join(map(str, loc)).removeprefix("pretrain.")
    may_be_own = FIELDS.keys() & {name, name.removesuffix(".name")}
    if kind == "literal_error" and may_be_own:
        return NEEDS_CODE
    if given in ("None", "none") and field and type(None) in get_args(field.annotation):
        return "; write null"
    return ""


def _field_at(loc: tuple[int | str, ...]) -> FieldInfo | None:
    kinds: list[type[BaseModel]] = [ExperimentSpec]
    field = None
    for name in map(str, loc):
        field = next((kind.model_fields[name] for kind in kinds if name in kind.model_fields), None)
        if field is None:
            return None
        kinds = _specs_in(field, None)
    return field


def _suggest_field(
    loc: tuple[int | str, ...], raw: Mapping[str, Any], *, in_file: bool, of_function: bool
) -> str:
    """Return a suggestion for an unknown field: one that can be typed in its place.

    So it is a field of the chosen family and task, or a field of files where a file is wrong.
    """
    *group, last = map(str, loc)
    if "." in last:
        path = [*group, *last.split(".")]
        is_field = ".".join(path) in field_names(raw=raw, only_chosen=True)
        hint = f"; write {nested(path)}"
        if is_field:
            return hint
        return _suggest_field(tuple(path), raw, in_file=in_file, of_function=of_function)
    if not group and last in yaml_text.FILE_FIELDS:
        return "; only a file can have it, at its top level"
    if not group and last in STUDY_FIELDS:
        return "; only a study has it, which is a file with 'variants'"
    if not group and last in FILE_KINDS:
        return f"; only a file can have it, which 'vitcli {FILE_KINDS[last].command}' runs"
    if ".".join((*group, last)) in field_names(raw=raw):
        return f"; {_chosen(group, raw)} does not have it"
    known = field_names(raw=raw, only_chosen=True)
    known += (*yaml_text.FILE_FIELDS, *STUDY_FIELDS) if in_file else ()
    siblings = [name.split(".")[-1] for name in known if name.split(".")[:-1] == group]
    if hint := did_you_mean(last, siblings):
        return hint
    if of_function:
        return ""
    elsewhere = {name.split(".")[-1]: name for name in reversed(known)}
    close = closest(last, elsewhere)
    return f"; did you mean {elsewhere[close]!r}?" if close else ""


def nested(path: Sequence[str]) -> str:
    """Return how a file writes a dotted field, such as ``optim: {lr: ...}``."""
    first, *below = path
    return f"{first}: {{{nested(below)}}}" if below else f"{first}: ..."


def _chosen(group: Sequence[str], raw: Mapping[str, Any]) -> str:
    spec: type[BaseModel] = ExperimentSpec
    inner: Any = raw
    choice = None
    for name in group:
        field, inner = spec.model_fields[name], yaml_text.value_at(inner, name)
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

    The fields of the family and task in ``raw`` come first, or alone with ``only_chosen``: then a
    part that ``raw`` lacks and may lack, such as ``pretrain``, has no fields.
    """
    names: list[str] = []
    for name, field in spec.model_fields.items():
        names.append(prefix + name)
        inner = yaml_text.value_at(raw, name)
        if only_chosen and inner is None and field.default is None:
            continue
        kinds = _specs_in(field, inner)
        for kind in kinds[:1] if only_chosen else kinds:
            below = inner if isinstance(inner, Mapping) else None
            names += field_names(kind, f"{prefix}{name}.", below, only_chosen=only_chosen)
    return [*dict.fromkeys(names)]


def _specs_in(field: FieldInfo, raw: Any) -> list[type[BaseModel]]:
    choice, table = choice_of(field), table_of(field)
    if table is not None:
        row = table.get(yaml_text.value_at(raw, "name") or raw)
        return [row.own] if row and row.own else []
    if choice is None:
        kinds = get_args(field.annotation) or (field.annotation,)
        return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    first = choice.name_of(raw)
    return [choice.table[name].spec_class for name in dict.fromkeys((first, *choice.table))]
