"""Build what the rows of tables name. No torch."""

from typing import Any

from vitcli.core.spec import TokenSpec
from vitcli.core.spec.rows import Row, load_target, options_of


def make(row: Row, *args: Any, **options: Any) -> Any:
    """Call the class or function of a row with the arguments and return the result."""
    return load_target(row.build)(*args, **options)


def make_part(spec: TokenSpec, slot: str, *args: Any) -> Any:
    """Return what the row of a slot builds from the arguments and its options in the spec.

    An option that the family of the spec does not have keeps the default of the layer.
    """
    row = spec.row_of(slot)
    given = {key: field for key, field in row.options.items() if hasattr(spec, field)}
    options = {key: getattr(spec, field) for key, field in given.items()}
    part = make(row, *args, **options, **options_of(getattr(spec, slot, "")))
    if row.source:
        part.own_part = slot, type(part)
    return part
