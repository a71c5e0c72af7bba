"""Build the class or function that a row of a table names."""

from typing import Any

from vitcli.core.spec.rows import Row, load_target


def make(row: Row, *args: Any) -> Any:
    """Call the class or function of a row with the arguments and return the result."""
    return load_target(row.build)(*args)
