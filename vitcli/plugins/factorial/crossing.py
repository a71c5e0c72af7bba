"""From the variants of a study file to every combination of them."""

import itertools
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import flatten
from vitcli.runner.experiment.yaml_text import Places
from vitcli.runner.study.design import Design
from vitcli.runner.study.result import FigureRow

MAX_PARTS = 7
"""Most parts of a factorial study, which has 2^parts cells."""
Cell = frozenset[str]


def cells(parts: Sequence[str]) -> list[Cell]:
    """Return every combination of parts: the empty one first, then by number of parts."""
    counts = range(len(parts) + 1)
    return [frozenset(cell) for n in counts for cell in itertools.combinations(parts, n)]


def cross_variants(
    named: Mapping[str, dict[str, Any]],
    tune: Mapping[str, Any],
    places: Places,
) -> dict[str, dict[str, Any]]:
    """Return the cells of a factorial study: names of parts, joined by ``+`` -> changed fields."""
    changes = {name: flatten(fields, whole_options=True) for name, fields in named.items()}
    baseline, *parts = named
    if not 2 <= len(parts) <= MAX_PARTS or "+" in "".join(parts) or tune:
        raise ConfigError(
            f"{places.where(('design',))}: a factorial study has a baseline and 2 to"
            f" {MAX_PARTS} variants, no + in their names, and no 'tune'"
        )
    changed = [field for part in parts for field in changes[part]]
    if twice := [field for field in changed if changed.count(field) > 1]:
        where = places.where(("design",))
        raise ConfigError(f"{where}: two variants change {twice[0]}; cross different fields")
    crossed = {}
    for cell in cells(parts):
        chosen = [part for part in parts if part in cell]
        fields = ChainMap(*(changes[part] for part in chosen), changes[baseline])
        crossed["+".join(chosen) or baseline] = dict(fields)
    return crossed


ROW = Design(
    cross="vitcli.plugins.factorial.crossing:cross_variants",
    table="vitcli.plugins.factorial.effects:build_effects",
)
EFFECTS = FigureRow(
    "Main effects on the diagonal, interactions of two parts below it, each with its 95 %"
    " interval. An effect in bold exists.",
    "vitcli.plugins.factorial.figure:interactions",
)
