"""From the row of a table to what the row builds."""

from functools import cache
from importlib import import_module
from typing import Any

from vitcli.core.spec.rows import Row, Target


def maker(target: Target | None) -> Any:
    """Return the class or function that a row builds with, imported where it is named by text.

    Raises:
        ValueError: The row builds nothing.
    """
    if target is None:
        raise ValueError("this row builds nothing")
    return _imported(target) if isinstance(target, str) else target


@cache
def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def make(row: Row, *args: Any) -> Any:
    """Return what a row builds from its arguments."""
    return maker(row.build)(*args)
