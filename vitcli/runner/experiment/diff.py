"""Differences between configurations."""

from typing import Any

from pydantic import BaseModel

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.experiment.config import SIZES, STATISTICS

Change = tuple[Any, Any]


def differences(one: BaseModel, other: BaseModel, prefix: str = "") -> dict[str, Change]:
    """Return the fields that differ: dotted field -> (value in ``one``, value in ``other``)."""
    found: dict[str, Change] = {}
    for name in type(one).model_fields:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, BaseModel) and isinstance(right, BaseModel):
            found |= differences(left, right, f"{prefix}{name}.")
        elif left != right:
            found[prefix + name] = (left, right)
    return found


def with_data_defaults(
    spec: ExperimentSpec, stored: ExperimentSpec, meta: dict[str, Any]
) -> ExperimentSpec:
    """Return ``spec`` with its open fields about the data set taken from a stored, resolved spec.

    Mean and std are taken too, unless the user typed them for the stored run.
    """
    typed = meta.get("typed", [])
    follow = ["class_names", *(name for name in STATISTICS if name not in typed)]
    model = {k: getattr(stored.model, k) for k in SIZES if getattr(spec.model, k) is None}
    data = {k: getattr(stored.data, k) for k in follow if getattr(spec.data, k) is None}
    return spec.replace(model=spec.model.replace(**model), data=spec.data.replace(**data))


def changed_fields(spec: ExperimentSpec) -> dict[str, Any]:
    """Return the fields that differ from the defaults: dotted field -> value."""
    return {name: value for name, (_, value) in differences(ExperimentSpec(), spec).items()}
