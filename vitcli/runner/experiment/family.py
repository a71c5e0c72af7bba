"""Another model family or task."""

from collections.abc import Mapping
from typing import Any

from vitcli.core.spec import FAMILIES, ModelSpec
from vitcli.core.spec.families import DEFAULT_FAMILY, DEFAULTS, FAMILY
from vitcli.core.spec.own import FIELDS
from vitcli.core.spec.task import TASK
from vitcli.plugin import missing_for
from vitcli.runner.errors import ConfigError

FIELD = f"model.{FAMILY.key}"
SIZES = ModelSpec.model_fields.keys() - {FAMILY.key}
"""Fields of every family: sizes that follow from the data."""


def switch_family(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Replace the model of an experiment if ``changes`` names another family.

    The widths and depths of one family make no sense in another, so the model becomes the small
    model of the new family. Other changes still apply to it. The sizes of the data stay. Published
    weights of the new family replace those of ``train.init``, with the pictures that they expect.
    Return a note about the new model, too; empty if the family stays.
    """
    model, name = raw.get("model"), changes.get(FIELD)
    if not isinstance(name, str) or name not in FAMILIES or name == FAMILY.name_of(model):
        return dict(raw), ""
    small = "small " if FAMILIES[name].small else ""
    note = (
        f"{FIELD}={name} replaces the experiment's model by a {small}{name};"
        " 'vitcli train --dry-run' shows all fields"
    )
    new = dict(raw) | {"model": _small_model(model, name)}
    if changes.get("model.pretrained") and FAMILIES[name].weights:
        for part, dropped in {"data": ("mean", "std", "resize"), "train": ("init",)}.items():
            fields = new.get(part) or {}
            new[part] = {key: value for key, value in fields.items() if key not in dropped}
    return new, note


def _small_model(model: Any, name: str) -> dict[str, Any]:
    small = FAMILIES[name].small if name in FAMILIES else {}
    sizes = {field: value for field, value in dict(model or {}).items() if field in SIZES}
    return {**small, **sizes}


def model_below(model: Any, name: Any) -> Any:
    """Return the fields that a file or a variant with the family ``name`` is laid over.

    These are the fields of ``model``, whose family may be another one, if both are built in and all
    fields suit, as in files of 1.0.0; else those of its small model, as in ``switch_family``.
    """
    is_mapping = isinstance(model, Mapping) and isinstance(name, str)
    if not is_mapping or name == model.get(FAMILY.key, DEFAULT_FAMILY):
        return model
    row, old = FAMILIES.get(name), FAMILIES[FAMILY.name_of(model)]
    known = row.spec.model_fields if row and not (row.source or old.source) else {}
    if known and all(key in known or DEFAULTS.get(key, ...) == model[key] for key in model):
        return model
    return _small_model(model, name)


def choice_below(field: str, below: Any, name: Any) -> Any:
    """Return the fields that those of a choice are laid over: another name has its own defaults.

    ``below`` are the fields of the choice, such as ``model.ffn``, or its name alone; they may be
    invalid. ``name`` is None if the name stays.
    """
    if field == "model":
        return model_below(below, name)
    fields = below if isinstance(below, Mapping) else {} if below is None else {"name": below}
    known = fields.get("name") or (TASK.default if field.endswith("task") else None)
    return fields if name in (None, known) else {}


def is_choice(field: str) -> bool:
    """Return whether the fields below this one depend on a name beside them."""
    return field.removeprefix("pretrain.") in {"model", "task", "augment.policy", *FIELDS}


def is_option(field: str) -> bool:
    """Return whether a dictionary in this field is one value."""
    is_below = is_choice(field.rpartition(".")[0]) and not is_choice(field)
    return is_below and field != "task.teacher"


def split_published(word: str) -> tuple[str, str] | None:
    """Return family and name of published weights, such as ``timm:NAME``; None for other words."""
    family, colon, name = word.partition(":")
    if colon and (missing := missing_for(FIELD, family)):
        raise ConfigError(f"{word}: {missing}")
    has_weights = colon and family in FAMILIES and FAMILIES[family].weights
    return (family, name) if has_weights else None
