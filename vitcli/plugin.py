"""The seam: what a plugin adds to vitcli, and which plugins there are. No torch.

A plugin is a folder in ``vitcli/plugins``. Its module ``plugin.py`` says what it adds, as text that
is imported when it is used:

    plugin = Plugin(
        about="masked autoencoders",
        rows={"task.name": {"mae": "vitcli.plugins.mae.spec:ROW"}},
    )
"""

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeVar

FOLDER = Path(__file__).with_name("plugins")
Target = str | Callable[..., Any]
"""A class or function that a row builds with, or the text "module:name" to import it from."""
T = TypeVar("T")

VARIABLE = "VITCLI_PLUGINS"
"""Variable of the environment: ``no:NAME``, several separated by commas, switches plugins off."""
OFF = "no:"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One capability, in a folder of its own."""

    about: str
    """One line for ``vitcli plugins``."""
    needs: tuple[str, ...] = ()
    """Other plugins, without which this one is off."""
    rows: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Field of a table, such as ``task.name`` -> name -> the row, as "module:name"."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Command -> its function or group, as "module:name"."""


@cache
def plugins() -> dict[str, Plugin]:
    """Return the plugins by name, also those that are off."""
    names = sorted(path.parent.name for path in FOLDER.glob("*/plugin.py"))
    return {name: import_module(f"vitcli.plugins.{name}.plugin").plugin for name in names}


def switches(text: str) -> list[str]:
    """Return the words of ``VITCLI_PLUGINS``, such as ``no:search``."""
    return [word.strip() for word in text.split(",") if word.strip()]


def why_off(name: str) -> str:
    """Return why a plugin is off; empty text if it is on."""
    if f"{OFF}{name}" in switches(os.environ.get(VARIABLE, "")):
        return "switched off"
    known = plugins()
    missing = [needed for needed in known[name].needs if needed not in known or why_off(needed)]
    return f"needs the plugin {missing[0]}" if missing else ""


def active() -> Iterator[Plugin]:
    return (plugin for name, plugin in plugins().items() if not why_off(name))


def rows_of(field: str) -> dict[str, str]:
    """Return the rows that plugins add to the table of a field: name -> "module:name"."""
    return {name: row for plugin in active() for name, row in plugin.rows.get(field, {}).items()}


def commands() -> dict[str, str]:
    return {name: target for plugin in active() for name, target in plugin.commands.items()}


def missing_for(field: str, value: object) -> str:
    """Return which plugin would add the row of a value, such as ``mae``, but is off; else nothing.

    The row of ``parquet:PATH`` is ``parquet``.
    """
    row = value.partition(":")[0] if isinstance(value, str) else ""
    for owner, plugin in plugins().items():
        if row in plugin.rows.get(field, {}) and why_off(owner):
            return f"needs the plugin {owner}, which is off"
    return ""


@cache
def load_target(target: Target | None) -> Any:
    """Return the class or function of a target; import it if the target is text."""
    if target is None:
        raise ValueError("this row builds nothing")
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class Registry(MutableMapping[str, T]):
    """The table of a field, of an experiment or of a room; plugins and own code add to it.

    The row of a plugin is text, "module:name", until it is read.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self.built_in: dict[str, T] = {}

    def __ior__(self, rows: Mapping[str, T]) -> Self:
        self.built_in |= rows
        return self

    @cached_property
    def _rows(self) -> dict[str, T | str]:
        return {**self.built_in, **rows_of(self.field)}

    def __getitem__(self, name: str) -> T:
        row = self._rows[name]
        if isinstance(row, str):
            row = self._rows[name] = load_target(row)
        return row

    def __setitem__(self, name: str, row: T) -> None:
        self._rows[name] = row

    def __delitem__(self, name: str) -> None:
        del self._rows[name]

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
