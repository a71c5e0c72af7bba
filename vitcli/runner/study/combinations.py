"""Combinations: the cells of a factorial study, and the settings of a tuned one."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.experiment.places import Places

MAX_SETTINGS = 100
MAX_PARTS = 7
"""Most parts of a factorial study, which has 2^parts cells."""

Cell = frozenset[str]
"""The names of the parts that are changed."""


def cells(parts: Sequence[str]) -> list[Cell]:
    """Return every combination of parts: the empty one first, then by number of parts."""
    return [
        frozenset(chosen)
        for count in range(len(parts) + 1)
        for chosen in itertools.combinations(parts, count)
    ]


def crossed_variants(
    named: Mapping[str, dict[str, Any]], tune: Mapping[str, list[Any]], places: Places
) -> dict[str, dict[str, Any]]:
    """Return the cells of a factorial study: name -> changed fields, the baseline first.

    The name of a cell joins those of its parts with ``+``.
    """
    baseline, *parts = named
    where = places.where(("design",))
    if not 2 <= len(parts) <= MAX_PARTS:
        raise ConfigError(
            f"{where}: a factorial study has a baseline and 2 to {MAX_PARTS} variants,"
            f" not {len(parts)}"
        )
    if tune:
        raise ConfigError(f"{where}: a factorial study cannot tune; remove 'tune'")
    changed: dict[str, str] = {}
    for part in parts:
        place = f"{places.where(('variants', part))}: variant {part!r}"
        if "+" in part:
            raise ConfigError(f"{place}: in a factorial study, + joins names; use another name")
        for field in flatten(named[part]):
            if field == "experiment":
                raise ConfigError(f"{place}: another experiment cannot be crossed; name its fields")
            if field in changed:
                raise ConfigError(
                    f"{place} changes {field}, and so does {changed[field]!r}; variants that are"
                    " crossed change different fields"
                )
            changed[field] = part
    return {
        "+".join(part for part in parts if part in cell) or baseline: dict(
            itertools.chain(
                flatten(named[baseline]).items(),
                *(flatten(named[part]).items() for part in parts if part in cell),
            )
        )
        for cell in cells(parts)
    }


def grid(tune: Mapping[str, list[Any]], places: Places) -> list[dict[str, Any]]:
    """Return every combination of the tuned values; without tuning, one empty setting."""
    settings = [
        dict(zip(tune, values, strict=True)) for values in itertools.product(*tune.values())
    ]
    if len(settings) > MAX_SETTINGS:
        raise ConfigError(
            f"{places.where(('tune',))}: {len(settings)} settings are too many;"
            f" at most {MAX_SETTINGS} are allowed"
        )
    if any(setting in settings[:i] for i, setting in enumerate(settings)):
        raise ConfigError(f"{places.where(('tune',))}: a value appears twice")
    return settings
