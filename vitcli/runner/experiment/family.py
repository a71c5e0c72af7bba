"""Another model family from the command line."""

from collections.abc import Mapping
from typing import Any

from vitcli.core.spec import FAMILIES, ModelSpec
from vitcli.core.spec.families import FAMILY

FIELD = f"model.{FAMILY.key}"
SIZES = ModelSpec.model_fields.keys() - {FAMILY.key}
"""Fields of every family: sizes that follow from the data."""


def switch_family(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Replace the model of an experiment if ``changes`` names another family.

    The widths and depths of one family make no sense in another, so the model becomes the small
    model of the new family. Other changes still apply to it. The sizes of the data stay. Pretrained
    weights of timm replace those of ``train.init``, with the pictures that they expect.

    Returns:
        The experiment, and a note about the new model; empty if the family stays.
    """
    model, name = raw.get("model"), changes.get(FIELD)
    if not isinstance(name, str) or name not in FAMILIES or name == FAMILY.name_of(model):
        return dict(raw), ""
    small = FAMILIES[name].small
    sizes = {field: value for field, value in dict(model or {}).items() if field in SIZES}
    note = (
        f"{FIELD}={name} replaces the experiment's model by a {'small ' if small else ''}{name};"
        " 'vitcli train --dry-run' shows all fields"
    )
    new = dict(raw) | {"model": {**small, **sizes}}
    if changes.get("model.pretrained"):
        for part, dropped in {"data": ("mean", "std", "resize"), "train": ("init",)}.items():
            fields = new.get(part) or {}
            new[part] = {key: value for key, value in fields.items() if key not in dropped}
    return new, note
