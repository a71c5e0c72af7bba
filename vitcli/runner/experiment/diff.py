"""Differences between configurations."""

from collections.abc import Mapping
from functools import cache
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

Config = ExperimentSpec | Mapping[str, Any]
"""A configuration, as plain data if it has own code."""
Change = tuple[Any, Any]
UNSET: Change = (None, None)
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


def differences(one: Config, other: Config) -> dict[str, Change]:
    """Return the fields that differ: dotted field -> (value in ``one``, value in ``other``).

    A field that only one of them has, such as one of another model family, or of a part that the
    other lacks, such as ``pretrain``, differs unless it has its default value. The other's value is
    None. A name of own code means another field in each own model family, task or part.
    """
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        one, other = _plain(one), _plain(other)
    left, right = _fields(one), _fields(other)
    found: dict[str, Change] = {}
    groups = [*dict.fromkeys(name.partition(".")[0] for name, _ in (*left, *right))]
    for field in sorted({**left, **right}, key=lambda it: groups.index(it[0].partition(".")[0])):
        is_shared = field in left and field in right
        ours, theirs = (
            value if is_shared or value != default else None
            for value, default in (left.get(field, UNSET), right.get(field, UNSET))
        )
        if ours != theirs:
            before = found.get(field[0], UNSET)  # of another own family
            found[field[0]] = (
                before[0] if ours is None else ours,
                before[1] if theirs is None else theirs,
            )
    return {name: change for name, change in found.items() if change[0] != change[1]}


def _plain(config: Config) -> Mapping[str, Any]:
    return config.model_dump(mode="json") if isinstance(config, BaseModel) else config


def _fields(
    config: BaseModel | Mapping[str, Any], prefix: str = ""
) -> dict[tuple[str, str], Change]:
    """Return (dotted field, own family or task that it belongs to) -> (value, default)."""
    found: dict[tuple[str, str], Change] = {}
    if isinstance(config, Mapping):
        defaults = plain_fields(_raw_defaults(ExperimentSpec, config))
        family = value_at(config, "model.family") or DEFAULT_FAMILY
        own = "" if built_in(FAMILIES, family) else str(family)
        for name, value in plain_fields(config).items():
            is_own = name.startswith("model.") and name not in MODEL_FIELDS
            found[name, own if is_own else ""] = value, defaults.get(name)
        return found
    kind = type(config)
    base: Any = kind.__mro__[1] if getattr(config, "is_own", False) else kind
    for name, default in _defaults(kind).items():
        value, key = getattr(config, name), prefix + name
        if isinstance(value, BaseModel):
            below = _fields(value, f"{key}.")
            if choice := choice_of(kind.model_fields[name]):
                chosen = f"{key}.{choice.key}", ""
                below[chosen] = below[chosen][0], choice.default
            found |= below
            if all(value == default for value, default in below.values()):
                found[key, ""] = {}, {}
            continue
        options = options_of(value)
        found[key, "" if name in base.model_fields else str(kind)] = (
            str(value) if options else value,
            default,
        )
        found |= {(f"{key}.{option}", ""): (value, None) for option, value in options.items()}
    return found


@cache
def _defaults(kind: type[BaseModel]) -> dict[str, Any]:
    fields = kind.model_fields.items()
    kept = [(name, field) for name, field in fields if name not in getattr(kind, "derived", ())]
    return {name: field.get_default(call_default_factory=True) for name, field in kept}


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


def changed_fields(config: Config) -> dict[str, Any]:
    """Return the fields that differ from the defaults: dotted field -> value.

    The weights of a teacher are left out, because vitcli fills them in. Of an own model or task in
    a raw configuration, no default is known, so all of its options are returned.
    """
    found = differences(ExperimentSpec(), config)
    found.pop(TEACHER_WEIGHTS, None)
    return {name: value for name, (default, value) in found.items() if value != default}


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


def _raw_defaults(spec: type[BaseModel], raw: Any) -> dict[str, Any]:
    defaults = spec().model_dump(mode="json")
    for name, field in spec.model_fields.items():
        choice, value = choice_of(field), value_at(raw, name)
        if choice:
            row = built_in(choice.table, value_at(value, choice.key) or choice.default)
            chosen = row.spec_class.model_construct().model_dump(mode="json") if row else {}
            defaults[name] = chosen | {choice.key: choice.default}
        elif name == "pretrain" and isinstance(value, Mapping):
            defaults[name] = _raw_defaults(PretrainSpec, value)
    return defaults
