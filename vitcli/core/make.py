"""Build the class or function that a row of a table names."""

from functools import cache
from importlib import import_module
from typing import Any

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


def make(row: Row, *args: Any) -> Any:
    """Call the class or function of a row with the arguments and return the result."""
    return load_target(row.build)(*args)
