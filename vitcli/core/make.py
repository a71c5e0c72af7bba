"""Build the class or function that a row of a table names."""

from functools import cache
from importlib import import_module
from typing import Any

from vitcli.core.spec import TokenSpec
from vitcli.core.spec.rows import Row, Target


def load_target(target: Target | None) -> Any:
    """Return the class or function of a target; import it if the target is text.

    Raises:
        ValueError: The target is None.
    """
    if target is None:
        raise ValueError("this row builds nothing")
    return _import_target(target) if isinstance(target, str) else target


@cache
def _import_target(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def make(row: Row, *args: Any, **options: Any) -> Any:
    """Call the class or function of a row with the arguments and return the result."""
    return load_target(row.build)(*args, **options)


def make_part(spec: TokenSpec, slot: str, *args: Any) -> Any:
    """Return what the row of a slot builds from the arguments and its options in the spec.

    An option that the family of the spec does not have keeps the default of the layer.
    """
    row = spec.row_of(slot)
    given = {key: field for key, field in row.options.items() if hasattr(spec, field)}
    return make(row, *args, **{key: getattr(spec, field) for key, field in given.items()})
