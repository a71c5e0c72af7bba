"""The seam: what a plugin adds to vitcli, and which plugins there are. No torch.

A plugin is a folder in ``vitcli/plugins``, or an installed package with the entry point ``vitcli``.
Its module ``plugin.py`` says what it adds, as text that is imported when it is used:

    plugin = Plugin(
        about="masked autoencoders",
        rows={"task.name": {"mae": "vitcli.plugins.mae.spec:ROW"}},
    )
"""

import hashlib
import os
import re
import traceback
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args

from vitcli.version import __version__

FOLDER = Path(__file__).with_name("plugins")
Target = str | Callable[..., Any]
"""A class or function that a row builds with, or the text "module:name" to import it from."""
T = TypeVar("T")

VARIABLE = "VITCLI_PLUGINS"
"""Variable of the environment: ``no:NAME``, several separated by commas, switches plugins off."""
OFF = "no:"
TABLES = (
    *("task.name", "model.family", "model.attention", "model.ffn", "model.norm", "model.pos_embed"),
    *("model.patch_embed", "model.pool", "optim.name", "optim.schedule", "data.name"),
    *("data.augment.policy", "extra", "metric", "number", "figure", "interactive figure"),
    *("map page", "tracker", "engine", "file", "design", "study.figure", "document", "python"),
)
"""The tables that plugins add rows to; docs/reference/plugins.md says what each holds."""
DOORS = ("eval",)
"""Commands that take options of plugins."""
GROUP = "vitcli"
"""Entry point of installed packages with a plugin: its name is the plugin's."""


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
    """Command, such as ``runs page`` -> its function or group, as "module:name"."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Command -> a function whose keyword-only parameters become options of the command, as
    "module:name". It gets what the command gives to it, and its options; it returns None if they
    were not used."""
    package: str = "vitcli"
    """The package that it comes from. This field and the next ones are set when it is loaded."""
    version: str = __version__
    problem: str = ""
    """Why it could not be loaded."""
    folder: Path = FOLDER
    """Where its code is."""

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of its Python files, with their names."""
        digest = hashlib.sha256()
        for path in sorted(self.folder.rglob("*.py")):
            digest.update(f"{path.relative_to(self.folder)}\n".encode() + path.read_bytes())
        return digest.hexdigest()

    def adds(self) -> list[str]:
        commands = [f"the command {name}" for name in self.commands]
        return commands + [f"{field} {name}" for field, rows in self.rows.items() for name in rows]


@cache
def plugins() -> dict[str, Plugin]:
    """Return the plugins by name, also those that are off or broken."""
    found: dict[str, Plugin] = {}
    for path in sorted(FOLDER.glob("*/plugin.py")):
        module = import_module(f"vitcli.plugins.{path.parent.name}.plugin")
        found[path.parent.name] = replace(module.plugin, folder=path.parent)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        plugin = _installed(point)
        others = {added for other in found.values() for added in other.adds()}
        taken = ["this name"] * (point.name in found)
        taken += [added for added in plugin.adds() if added in others]
        if taken and not plugin.problem:
            plugin = replace(plugin, problem=f"another plugin has {taken[0]}")
        name = f"{point.name} of {plugin.package}" if point.name in found else point.name
        found[name] = plugin
    return found


def _installed(point: EntryPoint) -> Plugin:
    package = point.dist.name if point.dist else point.name
    version = point.dist.version if point.dist else ""
    try:
        plugin = point.load()
        if not isinstance(plugin, Plugin):
            raise TypeError(f"{point.value} is no Plugin")
        if unknown := sorted(plugin.rows.keys() - {*TABLES}):
            raise ValueError(f"there is no table {unknown[0]!r}")
        if closed := sorted(plugin.options.keys() - {*DOORS}):
            raise ValueError(f"{closed[0]!r} takes no options of plugins")
    except (Exception, SystemExit) as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        return Plugin(about="", package=package, version=version, problem=problem)
    module = find_spec(point.module.partition(".")[0])
    folder = Path(module.origin).parent if module and module.origin else FOLDER
    return replace(plugin, package=package, version=version, folder=folder)


def switches(text: str) -> list[str]:
    """Return the words of ``VITCLI_PLUGINS``, such as ``no:search``."""
    return [word.strip() for word in text.split(",") if word.strip()]


def why_off(name: str) -> str:
    """Return why a plugin is off; empty text if it is on."""
    if problem := plugins()[name].problem:
        return problem
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


def options_of(command: str) -> list[str]:
    """Return the functions that add options to a command, each as "module:name"."""
    return [plugin.options[command] for plugin in active() if command in plugin.options]


def locate_in_plugin(error: BaseException) -> str:
    """Return file, line and text of an error inside an installed plugin; else nothing."""
    frames = traceback.extract_tb(error.__traceback__)
    for name, plugin in plugins().items():
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(plugin.folder)]
        if own and plugin.package != GROUP:
            place = f"{own[-1].filename}:{own[-1].lineno}"
            return f"plugin {name}: {place}: {type(error).__name__}: {error}"
    return ""


def has_option(command: str, name: str) -> bool:
    return any(name in signature(load_target(row)).parameters for row in options_of(command))


def package_of(module: str) -> str:
    """Return the installed package with a plugin that this module belongs to; else nothing."""
    name = _installed_plugin_of(module)
    return plugins()[name].package if name else ""


def _installed_plugin_of(module: str) -> str:
    root = re.split("[.:]", module)[0]
    for name, plugin in plugins().items():
        rows = [target for rows in plugin.rows.values() for target in rows.values()]
        targets = [*rows, *plugin.commands.values(), *plugin.options.values()]
        if plugin.package != GROUP and any(re.split("[.:]", each)[0] == root for each in targets):
            return name
    return ""


class PluginError(Exception):
    """What an installed plugin names cannot be imported."""


def missing_for(field: str, value: object) -> str:
    """Return which plugin would add the row of a value, such as ``mae``, but is off; else nothing.

    The row of ``parquet:PATH`` is ``parquet``.
    """
    row = value.partition(":")[0] if isinstance(value, str) else ""
    return _owner_off(lambda plugin: row in plugin.rows.get(field, {}))


def missing_for_command(name: str) -> str:
    return _owner_off(lambda plugin: name in plugin.commands)


def _owner_off(adds: Callable[[Plugin], bool]) -> str:
    owners = (name for name, plugin in plugins().items() if adds(plugin) and why_off(name))
    owner = next(owners, "")
    return f"needs the plugin {owner}, which is off" if owner else ""


@cache
def load_target(target: Target | None) -> Any:
    """Return the class or function of a target; import it if the target is text."""
    if target is None:
        raise ValueError("this row builds nothing")
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:
        if not (plugin := _installed_plugin_of(module)):
            raise
        problem = f"plugin {plugin}: {target}: {type(error).__name__}: {error}"
        raise PluginError(locate_in_plugin(error) or problem) from error


class Registry(UserDict[str, T]):
    """The table of a field, of an experiment or of a room; plugins and own code add to it.

    The row of a plugin is text, "module:name", until it is read.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self.built_in: dict[str, T] = {}

    def __ior__(self, rows: Mapping[str, T]) -> Self:  # type: ignore[override, misc]
        self.built_in |= rows
        return self

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        return {**self.built_in, **rows_of(self.field), **self.built_in}

    def __getitem__(self, name: str) -> T:
        row = self.data[name]
        if isinstance(row, str):
            loaded = load_target(row)
            if not self.is_read(name):  # a decorator of vitcli.parts adds the row by itself
                self._require_row(name, row, loaded)
                package = package_of(row)
                if package and getattr(loaded, "source", None) == "":
                    loaded = replace(loaded, source=package)
                self.data[name] = loaded
        return cast(T, self.data[name])

    def _require_row(self, name: str, target: str, loaded: object) -> None:
        kind: Any = get_args(self.__orig_class__)[0]  # type: ignore[attr-defined]
        if isinstance(kind, type) and not isinstance(loaded, kind):
            raise TypeError(
                f"{target} is no {kind.__name__} for {self.field} {name}; a decorator of"
                f" vitcli.parts needs name={name!r}"
            )

    def is_read(self, name: str) -> bool:
        """Return whether a row is there, and not only its text."""
        return not isinstance(self.data.get(name, ""), str)
