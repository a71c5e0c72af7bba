"""Rows of tables name what they build as text, so that reading a table imports nothing."""

from importlib import import_module
from typing import Any


def load(target: Any) -> Any:
    """Return what ``module:name`` stands for; anything else as it is."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
