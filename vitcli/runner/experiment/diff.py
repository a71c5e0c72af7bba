"""Differences between configurations."""

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec import FAMILIES, ExperimentSpec, ModelSpec
from vitcli.core.spec.experiment import PretrainSpec
from vitcli.core.spec.families import DEFAULT_FAMILY
from vitcli.core.spec.own import FIELDS as SLOTS
from vitcli.core.spec.rows import built_in, choice_of, options_of
from vitcli.core.spec.task import TeacherSpec
from vitcli.runner.experiment.config import SIZES, STATISTICS, flatten
from vitcli.runner.experiment.yaml_text import value_at

Change = tuple[Any, Any]
SHRUNK_FROM = "batch_size_shrunk_from"
"""Entry in meta.json: the batch size that the training images did not fill."""
RESIZED = "pictures_resized"
"""Entry in meta.json: ``data.resize`` follows from own pictures that the patches do not divide."""

DATA_FIELDS = (
    *(f"model.{name}" for name in SIZES),
    *(f"data.{name}" for name in ("class_names", "resize", *STATISTICS)),
)
"""Fields that follow from the data set where they are not set."""
MODEL_FIELDS = {f"model.{name}" for name in ModelSpec.model_fields}
DERIVED = tuple(f"task.teacher.{name}" for name in TeacherSpec.derived)
TEACHER_WEIGHTS = "task.teacher.sha256"
"""Field of a configuration that vitcli fills in. A study compares the weights of a teacher as it
compares those of ``train.init``: if the run is at hand."""


def differences(one: BaseModel, other: BaseModel, prefix: str = "") -> dict[str, Change]:
    """Return the fields that differ: dotted field -> (value in ``one``, value in ``other``).

    If only one of the two model families has a field, the field differs unless it has its default
    value. The other family's value is None. The same holds for the fields of a part that only one
    configuration has, such as ``pretrain``, and for the options of own code, whatever their names.
    """
    found: dict[str, Change] = {}
    if one == other:
        return found
    shared = _shared_names(one, other)
    for name in dict.fromkeys((*_names(one), *_names(other))):
        left, right = getattr(one, name, None), getattr(other, name, None)
        if name not in shared:
            ours = None if _is_default(one, name) else left
            theirs = None if _is_default(other, name) else right
            if (ours, theirs) != (None, None):
                found[f"{prefix}{name}"] = (ours, theirs)
            continue
        if _is_unset(one, name, other) or _is_unset(other, name, one):
            continue
        if isinstance(left, BaseModel) and isinstance(right, BaseModel):
            found |= differences(left, right, f"{prefix}{name}.")
        elif isinstance(left, BaseModel):
            found |= {field: (value, None) for field, value in _fields(left, prefix + name)}
        elif isinstance(right, BaseModel):
            found |= {field: (None, value) for field, value in _fields(right, prefix + name)}
        elif left != right:
            found |= _differing_choices(left, right, prefix + name)
    return found


def _shared_names(one: BaseModel, other: BaseModel) -> Collection[str]:
    is_own = getattr(one, "is_own", False) or getattr(other, "is_own", False)
    if type(one) is type(other) or not is_own:
        return {*_names(one), *_names(other)}
    base = next(kind for kind in type(one).__mro__ if isinstance(other, kind))
    return base.model_fields  # type: ignore[attr-defined]


def _names(spec: BaseModel) -> list[str]:
    derived = getattr(spec, "derived", ())
    return [name for name in type(spec).model_fields if name not in derived]


def _differing_choices(left: Any, right: Any, name: str) -> dict[str, Change]:
    ours, theirs = options_of(left), options_of(right)
    is_same_part = bool(ours or theirs) and str(left) == str(right)
    found = {} if is_same_part else {name: (left, right)}
    for option in dict.fromkeys([*ours, *theirs]):
        if ours.get(option) != theirs.get(option):
            found[f"{name}.{option}"] = (ours.get(option), theirs.get(option))
    return found


def _fields(part: BaseModel, name: str) -> list[tuple[str, Any]]:
    """Return the fields of a part that differ from its defaults; the part itself if none does."""
    found = differences(type(part)(), part, f"{name}.")
    return [(field, value) for field, (_, value) in found.items()] or [(name, {})]


def _is_unset(one: BaseModel, name: str, other: BaseModel) -> bool:
    """Return whether only ``one`` has the field, and has it at its default."""
    fields = type(one).model_fields
    return name in fields and name not in type(other).model_fields and _is_default(one, name)


def _is_default(spec: BaseModel, name: str) -> bool:
    field = type(spec).model_fields.get(name)
    default = field.get_default(call_default_factory=True) if field else None
    return bool(getattr(spec, name, None) == default)


def with_data_defaults(
    spec: ExperimentSpec, stored: ExperimentSpec, meta: dict[str, Any]
) -> ExperimentSpec:
    """Return ``spec`` with its unset data set fields filled from a stored, resolved spec.

    Mean and std are taken too, unless the user typed them for the stored run. The batch size is
    taken if the stored run shrank it from that of ``spec``, and the size of the pictures if the
    stored run fitted it to the patches.
    """
    typed = meta.get("typed")
    typed = typed if isinstance(typed, list) else []
    follow = [
        "class_names",
        *(["resize"] if meta.get(RESIZED) else []),
        *(name for name in STATISTICS if name not in typed),
    ]
    model = {k: getattr(stored.model, k) for k in SIZES if getattr(spec.model, k) is None}
    data = {k: getattr(stored.data, k) for k in follow if getattr(spec.data, k) is None}
    is_shrunk = meta.get(SHRUNK_FROM) == spec.train.batch_size
    train = {"batch_size": stored.train.batch_size} if is_shrunk else {}
    parts = {"model": model, "data": data, "train": train}
    # Not validated: the images of the run need not fit the model of ``spec``.
    return spec.model_copy(
        update={name: getattr(spec, name).model_copy(update=new) for name, new in parts.items()}
    )


def changed_fields(config: ExperimentSpec | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that differ from the defaults: dotted field -> value.

    The weights of a teacher are left out, because vitcli fills them in. Of an own model or task in
    a raw configuration, no default is known, so all of its options are returned.
    """
    if isinstance(config, Mapping):
        defaults = plain_fields(_defaults(ExperimentSpec, config))
        found = {name: (defaults.get(name), it) for name, it in plain_fields(config).items()}
    else:
        found = differences(ExperimentSpec(), config)
    found.pop(TEACHER_WEIGHTS, None)
    return {name: value for name, (default, value) in found.items() if value != default}


def raw_differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Change]:
    """Return ``differences`` of two raw configurations, which may have own parts."""
    left, right = plain_fields(one), plain_fields(other)
    ours, theirs = changed_fields(one), changed_fields(other)
    families = [value_at(raw, "model.family") or DEFAULT_FAMILY for raw in (one, other)]
    is_own = not all(built_in(FAMILIES, family) for family in families)
    if is_own and families[0] != families[1]:
        for fields, changed in ((left, ours), (right, theirs)):  # a name has two meanings
            options = {f for f in fields if f.startswith("model.")} - MODEL_FIELDS - {*changed}
            for option in options:
                del fields[option]
    pairs = {name: (left.get(name), right.get(name)) for name in [*ours, *theirs]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def plain_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a raw configuration as dotted fields, as ``differences`` names them."""
    rest = {key: value for key, value in config.items() if key != "code"}
    fields = {"code": config.get("code") or {}}
    for name, value in flatten(rest, whole_options=True).items():
        slot = name.removesuffix(".name")
        is_slot = slot.removeprefix("pretrain.") in SLOTS
        if not name.startswith(DERIVED):
            fields[slot if is_slot else name] = value
    return fields


def _defaults(spec: type[BaseModel], raw: Any) -> dict[str, Any]:
    defaults = spec().model_dump(mode="json")
    for name, field in spec.model_fields.items():
        choice, value = choice_of(field), value_at(raw, name)
        if choice:
            row = built_in(choice.table, value_at(value, choice.key) or choice.default)
            defaults[name] = row.spec_class().model_dump(mode="json") if row else {}
        elif name == "pretrain" and isinstance(value, Mapping):
            defaults[name] = _defaults(PretrainSpec, value)
    return defaults
