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
import sys
import traceback
import warnings
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
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
    "classifier",
)
"""The tables that plugins add rows to; docs/reference/plugins.md says what each holds."""
DOORS = ("eval",)
"""Commands that take options of plugins."""
GROUP = "vitcli"
"""Entry point of installed packages with a plugin: its name is the plugin's."""
CORE: dict[str, set[str]] = {}
"""Field of a table -> the names that vitcli itself has; a row of a plugin never replaces one."""
guard: Callable[[str], AbstractContextManager[Any]] = nullcontext
"""Refuses changes of torch by the package of this name in its block; the runner sets it."""
warn: Callable[[str], None] = warnings.warn
"""Shows a warning; the command line sets it."""


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
    modules: Mapping[str, Path] = field(default_factory=dict)
    """Package or module with its code -> folder or file."""

    @property
    def targets(self) -> list[str]:
        """Everything that it adds, each as "module:name"."""
        rows = [target for rows in self.rows.values() for target in rows.values()]
        return [*rows, *self.commands.values(), *self.options.values()]

    @property
    def sha256(self) -> str:
        return _sha256(self.modules.values())

    def adds(self, field: str, name: str) -> bool:
        """Return whether it adds this row to the table of a field, which vitcli does not have."""
        return name in self.rows.get(field, {}) and name not in CORE.get(field, ())

    def clashes(self, other: "Plugin") -> str:
        """Return what both add; empty text if they add different things."""
        commands = [f"the command {name}" for name in self.commands if name in other.commands]
        rows = [
            f"{field} {name}"
            for field, rows in self.rows.items()
            for name in rows
            if name in other.rows.get(field, {})
        ]
        return next(iter(commands + rows), "")


def _sha256(places: Iterable[Path]) -> str:
    """Return the SHA-256 of Python files and those of folders, with their names."""
    digest = hashlib.sha256()
    for place in sorted({*places}, key=lambda place: place.name):
        for path in python_files(place) if place.is_dir() else [place]:
            digest.update(f"{path.relative_to(place)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def python_files(folder: Path) -> list[Path]:
    """Return the Python files below a folder; hidden ones are from editors and file systems."""
    found = sorted(folder.rglob("*.py"))
    return [file for file in found if "/." not in f"/{file.relative_to(folder).as_posix()}"]


@cache
def plugins() -> dict[str, Plugin]:
    """Return the plugins by name, also those that are off or broken."""
    found = {path.parent.name: _in_folder(path) for path in sorted(FOLDER.glob("*/plugin.py"))}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        plugin = _installed(point)
        name = point.name
        if name in found:
            name = f"{name} of {plugin.package}"
            plugin = replace(plugin, problem=plugin.problem or "another plugin has this name")
        found[name] = plugin
    return found


def _in_folder(path: Path) -> Plugin:
    """Return the plugin of a file, without an import of its package: every command asks for it."""
    spec = spec_from_file_location(f"vitcli.plugins.{path.parent.name}.plugin", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    plugin: Plugin = replace(module.plugin, modules={spec.name: path.parent})
    return plugin


def _installed(point: EntryPoint) -> Plugin:
    package = point.dist.name if point.dist else point.name
    version = point.dist.version if point.dist else ""
    try:
        with _loading(f"package {package}"):
            plugin = point.load()
        if not isinstance(plugin, Plugin):
            raise TypeError(f"{point.value} is no Plugin")
        if unknown := sorted(plugin.rows.keys() - {*TABLES}):
            raise ValueError(f"there is no table {unknown[0]!r}")
        if closed := sorted(plugin.options.keys() - {*DOORS}):
            raise ValueError(f"{closed[0]!r} takes no options of plugins")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        plugin = Plugin(about="", problem=problem)
    modules = dict(filter(None, map(_place_of, [point.value, *plugin.targets])))
    return replace(plugin, package=package, version=version, modules=modules)


@contextmanager
def _loading(what: str) -> Iterator[None]:
    """Send what a package prints to stderr, and refuse its changes of torch."""
    with redirect_stdout(sys.stderr), guard(what):
        yield


def _place_of(target: str) -> tuple[str, Path] | None:
    """Return the package with the code of a target, and its folder.

    For a module in no package, that is its file; in a namespace package, the module's own folder.
    """
    words = target.partition(":")[0].split(".")
    names = [".".join(words[: end + 1]) for end in range(len(words)) if words[0] != GROUP]
    with suppress(ImportError, ValueError):
        for name in names:
            spec = find_spec(name)
            if spec and spec.has_location and spec.origin:
                is_alone = name == words[0] and not spec.submodule_search_locations
                return name, Path(spec.origin) if is_alone else Path(spec.origin).parent
    return None


def switches(text: str) -> list[str]:
    """Return the words of ``VITCLI_PLUGINS``, such as ``no:search``."""
    return [word.strip() for word in text.split(",") if word.strip()]


def why_off(name: str) -> str:
    """Return why a plugin is off; empty text if it is on."""
    if f"{OFF}{name}" in switches(os.environ.get(VARIABLE, "")):
        return "switched off"
    if problem := problem_of(name):
        return problem
    known = plugins()
    missing = [needed for needed in known[name].needs if needed not in known or why_off(needed)]
    return f"needs the plugin {missing[0]}" if missing else ""


def problem_of(name: str) -> str:
    """Return why a plugin cannot be on: an error in its package, or a plugin that is on."""
    plugin = plugins()[name]
    if plugin.problem or plugin.package == GROUP:
        return plugin.problem
    for other, row in plugins().items():
        if other == name:
            break
        if (both := row.clashes(plugin)) and not why_off(other):
            return f"another plugin has {both}"
    return ""


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
        places = plugin.modules.values() if plugin.package != GROUP else ()
        own = [each for each in frames if any(map(Path(each.filename).is_relative_to, places))]
        if own:
            place = f"{own[-1].filename}:{own[-1].lineno}"
            return f"plugin {name}: {place}: {type(error).__name__}: {error}"
    return ""


def has_option(command: str, name: str) -> bool:
    """Return whether a plugin adds an option to a command."""
    return any(name in signature(load_target(row)).parameters for row in options_of(command))


def package_of(module: str) -> str:
    """Return the installed package with a plugin that this module belongs to; else nothing."""
    name = _installed_plugin_of(module)
    return plugins()[name].package if name else ""


def _installed_plugin_of(module: str) -> str:
    for name, plugin in plugins().items():
        where = f"{module.partition(':')[0]}."
        inside = any(where.startswith(f"{package}.") for package in plugin.modules)
        if plugin.package != GROUP and inside:
            return name
    return ""


def code_of_package(package: str) -> str:
    """Return version and SHA-256 of all plugins of a package, if one is on; else nothing."""
    rows = {name: row for name, row in plugins().items() if row.package == package}
    if all(map(why_off, rows)):
        return ""
    places = [place for row in rows.values() for place in row.modules.values()]
    return f"{next(iter(rows.values())).version} {_sha256(places)[:12]}"


class PluginError(Exception):
    """What an installed plugin names cannot be imported."""


def missing_for(field: str, value: object) -> str:
    """Return which plugin would add the row of a value, such as ``mae``, but is off; else nothing.

    The row of ``parquet:PATH`` is ``parquet``.
    """
    row = value.partition(":")[0] if isinstance(value, str) else ""
    return _owner_off(lambda plugin: plugin.adds(field, row))


def missing_for_command(name: str) -> str:
    return _owner_off(lambda plugin: name in plugin.commands)


def _owner_off(adds: Callable[[Plugin], bool]) -> str:
    owners = [name for name, plugin in plugins().items() if adds(plugin)]
    if not owners or not all(map(why_off, owners)):
        return ""
    reason = why_off(owners[0])
    lack = reason if reason.startswith("needs") else "is off"
    return f"needs the plugin {owners[0]}, which {lack}"


@cache
def load_target(target: Target | None) -> Any:
    """Return the class or function of a target; import it if the target is text."""
    if target is None:
        raise ValueError("this row builds nothing")
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    plugin = _installed_plugin_of(module)
    try:
        with _loading(f"plugin {plugin}") if plugin else nullcontext():
            return getattr(import_module(module), name)
    except Exception as error:
        if not plugin:
            raise
        problem = f"plugin {plugin}: {target}: {type(error).__name__}: {error}"
        advice = f"to go without it: vitcli -p {OFF}{plugin}"
        raise PluginError(f"{locate_in_plugin(error) or problem}; {advice}") from error


class Registry(UserDict[str, T]):
    """The table of a field, of an experiment or of a room; plugins and own code add to it.

    The row of a plugin is text, "module:name", until it is read.
    """

    def __init__(self, field: str) -> None:
        self.field = field
        self.built_in: dict[str, T] = {}

    def __ior__(self, rows: Mapping[str, T]) -> Self:  # type: ignore[override, misc]
        self.built_in |= rows
        CORE.setdefault(self.field, set()).update(rows)
        return self

    @cached_property
    def data(self) -> dict[str, Any]:  # type: ignore[override]
        added = rows_of(self.field)
        for name in sorted(added.keys() & CORE.get(self.field, ())):
            warn(f"{added.pop(name)} is not used: vitcli itself has {self.field} {name}")
        return {**self.built_in, **added}

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
