"""Differences between configurations."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.rows import options_of
from vitcli.runner.experiment.config import SIZES, STATISTICS

Change = tuple[Any, Any]
SHRUNK_FROM = "batch_size_shrunk_from"
"""Entry in meta.json: the batch size that the training images did not fill."""
RESIZED = "pictures_resized"
"""Entry in meta.json: ``data.resize`` follows from own pictures that the patches do not divide."""

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
    """Return the fields that do not follow from others, and options of own parts without code."""
    derived = getattr(spec, "derived", ())
    fields = [name for name in type(spec).model_fields if name not in derived]
    return [*fields, *(spec.model_extra or {})]


def _differing_choices(left: Any, right: Any, name: str) -> dict[str, Change]:
    """Return the change of a field, and those of the options of an own part."""
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


def changed_fields(spec: ExperimentSpec) -> dict[str, Any]:
    """Return dotted fields that differ from the defaults, but for the weights of a teacher."""
    found = differences(ExperimentSpec(), spec)
    return {name: value for name, (_, value) in found.items() if name != TEACHER_WEIGHTS}
