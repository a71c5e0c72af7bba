"""Own code of a user: load it, hash it, and run nothing that the user has not named in this call.

It is a Python file or a package folder, named by ``code:`` of an experiment file outside run
folders, by ``--code``, or by an import in Python. Each run folder has copies, in ``code/``. They
run only with ``--trust-code``, or in a worker, whose driver has named the files.
"""

import ast
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points, packages_distributions, version
from importlib.util import decode_source, find_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from vitcli import plugin
from vitcli.core.metric import METRICS
from vitcli.core.spec import FAMILIES, TASKS, DataSpec, ExperimentSpec, ModelSpec, TaskSpec
from vitcli.core.spec.data import DATA_READERS, DATA_SETS, split_name
from vitcli.core.spec.own import FIELDS, PARTS, PYTHON, TEXTS, OwnPartError, forget, registering
from vitcli.core.spec.rows import table_of
from vitcli.plugin import code_of_package, locate_in_plugin, missing_for, plugins, why_off
from vitcli.runner.errors import InputError, OwnCodeError
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.experiment.yaml_text import value_at
from vitcli.runner.files import commit, make_folder, read_bounded, sha256
from vitcli.runner.text import printable
from vitcli.version import PACKAGE

FOLDER = "code"
"""Folder inside a run folder with the copies."""
GROUP = "vitcli.parts"
"""Entry point of installed packages with parts."""
MAX_BYTES = 1 << 20
"""Largest size of a file or package folder."""
INIT = "__init__.py"


@dataclass(frozen=True)
class Code:
    """A file or package folder of own code, as it was read."""

    path: Path
    contents: Mapping[str, bytes]
    """Path of each file, relative to the folder of ``path``, in order -> its bytes."""

    @property
    def name(self) -> str:
        """Such as ``part.py`` or, for a package, ``my_parts/``: its key in a configuration."""
        return self.path.name if self.path.suffix == ".py" else f"{self.path.name}/"

    @property
    def module(self) -> str:
        return self.path.stem

    @property
    def unix(self) -> dict[str, bytes]:
        """The files with the ends of lines of Unix, whatever git or an editor has made of them."""
        return {name: data.replace(b"\r\n", b"\n") for name, data in self.contents.items()}

    @property
    def sha256(self) -> str:
        return _hash(self.unix)

    def has(self, digest: str) -> bool:
        """Return whether a run states this code; 1.0.0 hashed the ends of lines as they were."""
        windows = {name: data.replace(b"\n", b"\r\n") for name, data in self.unix.items()}
        return digest in map(_hash, (self.contents, self.unix, windows))

    @property
    def paths(self) -> list[Path]:
        return [self.path.parent / name for name in self.contents]

    @property
    def modules(self) -> dict[str, tuple[str, bytes]]:
        """Name of each module -> its file and content."""
        names = (name.removesuffix(f"/{INIT}").removesuffix(".py") for name in self.contents)
        files = zip(map(str, self.paths), self.contents.values(), strict=True)
        return {n.replace("/", "."): file for n, file in zip(names, files, strict=True)}


def _hash(contents: Mapping[str, bytes]) -> str:
    """Return the SHA-256 of a file, or of the files of a package with their names."""
    if len(contents) == 1 and "/" not in (name := next(iter(contents))):
        return sha256(contents[name])
    files = sorted(contents.items())
    return sha256(b"".join(f"{name} {len(data)}\n".encode() + data for name, data in files))


@dataclass
class _State:
    """What this process has loaded, and which copies it may load."""

    codes: dict[str, Code] = field(default_factory=dict)
    """Name in a configuration, such as ``sigmoid.py`` -> the code."""
    trusts_copies: bool = False
    """Whether copies in run folders may be loaded."""
    typed: set[str] = field(default_factory=set)
    """Experiment files that the user has typed in this call; only they may name code."""
    packages: set[str] | None = None
    """Installed packages whose parts are loaded; None before the first look."""

    @property
    def modules(self) -> dict[str, tuple[str, bytes]]:
        return {name: it for code in self.codes.values() for name, it in code.modules.items()}


state = _State()
plugin.guard = unchanged


def read(path: Path) -> Code:
    is_package = (path / INIT).is_file()
    files = plugin.python_files(path) if is_package else [path]
    try:
        if not (path.stem.isidentifier() and path.suffix == ("" if is_package else ".py")):
            raise OwnCodeError(
                f"code: {path} is neither a Python file such as my_part.py nor a folder with {INIT}"
            )
        contents: dict[str, bytes] = {}
        for file in files:
            left = MAX_BYTES - sum(map(len, contents.values()))
            contents[str(file.relative_to(path.parent))] = read_bounded(file, left)
    except (OSError, ValueError) as error:
        raise OwnCodeError(f"code: {path}: {getattr(error, 'strerror', None) or error}") from error
    return Code(path, contents)


def load(paths: Sequence[Path]) -> dict[str, str]:
    """Run own code, which adds its parts to vitcli's tables; return name -> SHA-256."""
    return load_codes([read(path) for path in paths])


def load_codes(codes: Sequence[Code]) -> dict[str, str]:
    names = [code.module for code in codes]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise OwnCodeError(f"code: two files are called {double}; rename one of them")
    new = [code for code in codes if _is_new(code)]
    known = {code.module for code in (*codes, *state.codes.values())}
    for code in new:
        imported_by(code, known)
    state.codes |= {code.name: code for code in new}
    fresh = [code for code in new if not _is_imported(code)]
    try:
        for code in fresh:
            forget(code.name)
        for code in fresh:
            _import(code)
    except BaseException:
        for module in [module for code in fresh for module in code.modules]:
            sys.modules.pop(module, None)
        for code in new:
            del state.codes[code.name]
        raise
    return {code.name: state.codes[code.name].sha256 for code in codes}


def _is_new(code: Code) -> bool:
    """Return whether this code is not loaded; refuse what cannot be loaded beside other modules."""
    old = state.codes.get(code.name)
    is_same = old is not None and old.contents == code.contents
    if _is_imported(code):
        for module, (path, content) in code.modules.items():
            imported = TEXTS.get(module, "").splitlines()
            if imported and imported != decode_source(content).splitlines():
                raise OwnCodeError(
                    f"{path} was changed after it was imported; type importlib.reload({module})"
                )
    elif old and not is_same:
        raise OwnCodeError(
            f"{code.path}: another version of {code.name} is loaded already, from {old.path}"
        )
    elif not old and _hides_module(code.module):
        raise OwnCodeError(f"code: {code.path.name} has the name of another module; rename it")
    return not is_same


def imported_by(code: Code, known: set[str]) -> set[str]:
    """Return the other own code that a file or package imports, of which ``known`` are the names.

    Any other code of the person is refused: its content would not be part of the configuration.
    """
    used = set()
    for path, content in code.modules.values():
        for line, module in _imports(path, content):
            if module in known:
                used.add(module)
            elif place := _own_place(module, code.path.parent):
                raise OwnCodeError(
                    f"{path}:{line}: imports {module} ({place}); list it too, or put both into a"
                    " package folder"
                )
    return used - {code.module}


def _own_place(module: str, folder: Path) -> str:
    """Return where a module is that is neither Python's nor of an installed package, or ''."""
    if module == "vitcli" or module in sys.stdlib_module_names:
        return ""  # in a clone, vitcli's source may be beside the file
    try:
        spec = find_spec(module)
    except ValueError:  # a module that a program has made
        return ""
    places = [spec.origin] if spec and spec.origin else []
    places += spec.submodule_search_locations or [] if spec and not places else []
    beside = (folder / f"{module}.py", folder / module / INIT)
    places += [str(path) for path in beside if not places and path.is_file()]
    installed = {"site-packages", "dist-packages"}
    own = next((place for place in places if not installed & {*Path(place).parts}), "")
    return "" if own and module in packages_distributions() else own  # installed with pip -e


def _imports(path: str, content: bytes) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(content, path)
        decode_source(content)  # the bytes of comments, too
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        raise OwnCodeError(f"{path}:{line}: {describe_error(error)}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]


def _hides_module(name: str) -> bool:
    """Return whether a module of Python or of a package has this name; files here do not count."""
    if name in sys.stdlib_module_names or name in sys.modules:
        return True
    spec = find_spec(name)
    folder = Path(spec.origin).parent.resolve() if spec and spec.origin else Path.cwd()
    return Path.cwd() not in (folder, folder.parent)


def _is_imported(code: Code) -> bool:
    """Return whether Python has imported the file by itself, and not vitcli from its bytes."""
    module = sys.modules.get(code.module)
    file = code.path if code.name.endswith(".py") else code.path / INIT
    is_ours = getattr(module, "__loader__", None) is _finder
    there = getattr(module, "__file__", None)
    return bool(there) and not is_ours and Path(str(there)).resolve() == file.resolve()


class _Finder(MetaPathFinder, SourceLoader):  # type: ignore[misc]  # as in importlib itself
    """Imports the loaded code by name, from the bytes that were hashed. It writes no bytecode."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in state.modules else None

    def get_filename(self, name: str) -> str:
        return state.modules[name][0]

    def get_data(self, path: str | bytes) -> bytes:
        return dict(state.modules.values())[os.fsdecode(path)]

    def exec_module(self, module: ModuleType) -> None:
        root = module.__name__.partition(".")[0]
        source = next(code.name for code in state.codes.values() if code.module == root)
        with unchanged(self.get_filename(module.__name__)), registering(source):
            super().exec_module(module)


_finder = _Finder()


def _import(code: Code) -> None:
    """Run own code, unless other own code has imported it already."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    try:
        __import__(code.module)
    except (OwnCodeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        place = locate_in_own_code(error)
        if not place and not isinstance(error, Exception):  # a signal
            raise
        raise OwnCodeError(place or f"{code.path.name}: {describe_error(error)}") from error


def load_packages() -> bool:
    """Load the parts of installed packages; return whether there were any. Done once."""
    if state.packages is not None:
        return False
    state.packages = set()
    for point in entry_points(group=GROUP):
        name = point.dist.name if point.dist else point.name
        try:
            with unchanged(f"package {name}"), registering(name):
                point.load()
        except (Exception, SystemExit) as error:
            reason = describe_error(error)
            raise OwnCodeError(f"package {name}: its parts cannot be loaded: {reason}") from error
        state.packages.add(name)
    return bool(state.packages)


def _identity(name: str) -> str | None:
    """Return the SHA-256 or version of code by its name in a configuration; None if not loaded."""
    if name.startswith(PYTHON):
        return PYTHON if name.removeprefix(PYTHON) in PARTS.values() else None
    if not _is_file(name):
        load_packages()
        known = version(name) if name in (state.packages or ()) else None
        return code_of_package(name) or known
    module = Path(name).stem
    if module in {imported.partition(".")[0] for imported in TEXTS} & sys.modules.keys():
        file = Path(str(sys.modules[module].__file__))
        load([file.parent if name.endswith("/") else file])
    return state.codes[name].sha256 if name in state.codes else None


def _is_file(name: str) -> bool:
    return name.endswith((".py", "/"))


def require(code: Mapping[str, str], copies: Path | None = None) -> None:
    """Refuse stored code that the user has not named in this call; load it if it is trusted.

    ``code`` is the SHA-256 of each file or folder, and the version of each package.
    """
    if missing := missing_code(code, copies):
        raise OwnCodeError(needed(missing, copies))


def missing_code(code: Mapping[str, str], copies: Path | None = None) -> list[str]:
    """Return the stored code that is not loaded; refuse loaded code that differs from it."""
    loaded = {name: _identity(name) for name in code}
    missing = [n for n in code if loaded[n] is None or (n.startswith(PYTHON) and code[n] != PYTHON)]
    if missing and copies and state.trusts_copies and all(map(_is_file, missing)):
        load_copies({name: code[name] for name in missing}, copies)
        missing = []
    for name, digest in code.items():
        if not _is_file(name) and (found := code_of_package(name)) and found != digest:
            raise OwnCodeError(
                f"the package {name} is {found} (version, SHA-256), the run was trained"
                f" with {digest}; install that"
            )
        if name not in missing and _is_file(name) and not state.codes[name].has(digest):
            raise OwnCodeError(
                f"{state.codes[name].path}: differs from the {name} of the run (SHA-256"
                f" {digest[:12]}); name the version that it was trained with"
                + (f", or {copies / name}" if copies and (copies / name).exists() else "")
            )
    return missing


def load_copies(hashes: Mapping[str, str], copies: Path) -> None:
    codes = [read_copy(copies, name) for name in hashes]
    for code in codes:
        if not code.has(hashes[code.name]):
            raise OwnCodeError(f"{code.path}: it was changed after the run began")
    load_codes(codes)


def read_copy(copies: Path, name: str) -> Code:
    """Read the copy with a name that a configuration states; it is inside the folder of copies."""
    if Path(name).name != name.removesuffix("/"):
        raise OwnCodeError(f"code: {name!r} is not the name of a copy")
    return read(copies / name)


def needed(missing: Sequence[str], copies: Path | None) -> str:
    other = next((name for name in missing if not _is_file(name)), "")
    if part := other.removeprefix(PYTHON) if other.startswith(PYTHON) else "":
        return f"{part}: was defined in Python alone; put it into a file, and train with that"
    if off := next((name for name, row in plugins().items() if row.package == other), ""):
        return f"needs the plugin {off}, which is off"
    if other:
        return f"own code is needed: install the package {other}, or open the run where it is"
    here = shlex.join(word for name in missing for word in ("--code", name))
    ways = [here] if all(map(os.path.exists, missing)) else []
    if copies and all((copies / name).exists() for name in missing):
        ways.append(f"--trust-code to run the copy in {copies}")
    advice = ", or ".join(ways) or "--code and its path"
    return f"own code is needed: {', '.join(missing)}; type {advice} (in Python: import it)"


def name_code(value: Any, origin: Path, *, is_typed: bool) -> dict[str, str]:
    """Load the files that ``code`` of an experiment file names; return their hashes.

    It is a list of paths, relative to the file; in a run, the name and the hash of each file.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        hashes = {str(name): str(digest) for name, digest in value.items()}
        require(hashes, origin.parent / FOLDER)
        return hashes
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise OwnCodeError(f"{origin}: code: should be a list of Python files, such as [part.py]")
    what = "a file in a run folder" if is_below_run(origin) else "a file that nobody has typed"
    paths = [origin.parent / path for path in value]
    named = {code.path.resolve() for code in state.codes.values()}
    if (not is_typed or is_below_run(origin)) and not {path.resolve() for path in paths} <= named:
        words = [word for path in paths for word in ("--code", str(path))]
        raise OwnCodeError(f"{origin}: {what} cannot name code; type {shlex.join(words)}")
    return load(paths)


def is_below_run(path: Path) -> bool:
    """Return whether a file is in a folder, or below one, that vitcli or a sender made a run."""
    marks = ("status.json", "meta.json", "checkpoints", FOLDER)
    return any(
        (parent / "plan.json").exists()
        or ((parent / "config.yaml").exists() and any((parent / mark).exists() for mark in marks))
        for parent in path.resolve().parents
    )


def options() -> list[str]:
    """Return the options with which this call has named its own code."""
    if state.trusts_copies:
        return ["--trust-code"]
    return [word for code in state.codes.values() for word in ("--code", str(code.path))]


def sources_of(spec: BaseModel) -> set[str]:
    """Return the files and packages whose parts a spec uses; those of a teacher do not count."""
    sources = set()
    if isinstance(spec, ModelSpec):
        sources.add(FAMILIES[spec.family].source)
    if isinstance(spec, TaskSpec):
        sources.add(TASKS[spec.name].source)
    if isinstance(spec, DataSpec) and (reader := split_name(spec.name)):
        sources.add(reader[0].source)
    for name in type(spec).model_fields.keys() - {*getattr(spec, "derived", ())}:
        value, table = getattr(spec, name), table_of(type(spec).model_fields[name])
        if table is not None:
            sources.add(table[value].source)
        elif isinstance(value, BaseModel):
            sources |= sources_of(value)
    return sources - {""}


def code_of(spec: ExperimentSpec) -> dict[str, str]:
    """Return the own code that an experiment uses: name -> SHA-256 or version.

    That is the files of its parts and of loaded metrics, and the files that these import.
    """
    return code_of_parts(spec, *(row.source for row in METRICS.values() if row.source))


def code_of_parts(spec: BaseModel, *others: str) -> dict[str, str]:
    """Return the own code of a spec's parts and of other sources, and what its files import."""
    known = {code.module: code.name for code in state.codes.values()}
    todo, found = [*others, *sources_of(spec)], dict[str, str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = _identity(name) or ""
            if name in state.codes:
                todo += [known[module] for module in imported_by(state.codes[name], {*known})]
    return dict(sorted(found.items()))


def stored_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the own code that a training of a raw configuration runs, its teacher's included."""
    parts = (value_at(config, field) for field in ("code", "task.teacher.code"))
    items = [item for code in parts if isinstance(code, Mapping) for item in code.items()]
    return {str(name): str(digest) for name, digest in items}


def code_to_keep(spec: ExperimentSpec) -> dict[str, str]:
    teacher = spec.task.taught_by
    return {**spec.code, **(teacher.code if teacher else {})}


def refuse_unsaved(spec: ExperimentSpec) -> None:
    """Refuse a run with a part that no file has, because nobody could load the run."""
    if part := next((name for name in code_to_keep(spec) if name.startswith(PYTHON)), None):
        raise OwnCodeError(
            f"{part.removeprefix(PYTHON)}: is defined in a notebook or script; to save a run with"
            " it, put it into a file, such as my_part.py, and import that"
        )


def save_copies(spec: ExperimentSpec, folder: Path) -> None:
    """Copy the own code of an experiment and of its teacher into the folder of a run or study."""
    refuse_unsaved(spec)
    for name in code_to_keep(spec):
        for file, content in state.codes[name].contents.items() if name in state.codes else ():
            path = folder / FOLDER / file
            make_folder(path.parent)
            commit(path, content)


def refuse_persons_files(
    spec: ExperimentSpec, folder: Path, configs: Callable[[], Iterable[Any]]
) -> None:
    """Refuse a folder in which a file of a person is where ``save_copies`` would write.

    That is an edited copy, another file, or the own code itself, which would be removed with the
    copies. ``configs`` returns those with which copies were made.
    """
    copies = folder / FOLDER
    for name in code_to_keep(spec).keys() & state.codes.keys():
        code = state.codes[name]
        for source, content in zip(code.paths, code.contents.values(), strict=True):
            path = copies / source.relative_to(code.path.parent)
            is_itself = path.is_file() and source.exists() and path.samefile(source)
            if is_itself or (path.is_file() and path.read_bytes() != content):
                known = {stored_code(config).get(name, "") for config in configs()} - {""}
                if is_itself and known:
                    continue
                with suppress(OwnCodeError):
                    if any(map(read_copy(copies, name).has, known)):
                        break
                raise InputError(
                    f"{path} is no copy that vitcli made, and a training would put one there; move"
                    " it elsewhere, or choose another folder with -o"
                )


def plugins_of(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the plugins that a configuration needs: name -> version and SHA-256."""
    return {
        name: {"version": row.version, "sha256": row.sha256}
        for name, row in plugins().items()
        for part in _parts(config)
        if not why_off(name) and any(row.adds(field, _row_of(part, field)) for field in row.rows)
    }


def missing_plugin(config: Mapping[str, Any], recorded: Collection[str] = ()) -> str:
    """Return which plugin a configuration needs that is off or not there; else nothing.

    ``recorded`` are the names of plugins that it was trained with.
    """
    places = sorted({place for row in plugins().values() for place in row.rows})
    needs = (missing_for(p, value_at(part, p)) for part in _parts(config) for p in places)
    if reason := next(filter(None, needs), ""):
        return reason
    for name in recorded:
        known = plugins().get(name)
        if known is None or known.problem:
            return f"needs the plugin {name}, which is {'off' if known else 'not installed'}"
    if config.get("code") or "base" in config:
        return ""
    trained = [part for part in (config, config.get("pretrain")) if isinstance(part, Mapping)]
    for table in (*FIELDS.values(), DATA_READERS):
        for part in trained:
            row = _row_of(part, table.field)
            if row and row not in table and row not in DATA_SETS:
                return f"needs a plugin with {table.field} {row}"
    return ""


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a configuration, and those of its pre-training and its teacher inside it."""
    inside = (value_at(config, name) for name in ("pretrain", "task.teacher"))
    return [config, *(part for part in inside if isinstance(part, Mapping))]


def _row_of(config: Mapping[str, Any], field: str) -> str:
    """Return the name of the row that a field names, such as ``parquet`` of ``parquet:PATH``."""
    value = value_at(config, field)
    name = value.get("name") if isinstance(value, Mapping) else value
    return name.partition(":")[0] if isinstance(name, str) else ""


def is_read_raw(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration is not checked: its code, or its plugin, is not at hand."""
    return bool(config.get("code") or missing_plugin(config))


def locate_in_own_code(error: BaseException) -> str:
    """Return file, line and text of an error inside own code; empty if it is not from there.

    Ctrl-C, and the end of the process by another signal, are not from there.
    """
    stack = traceback.extract_tb(error.__traceback__)
    is_ours = bool(stack) and Path(stack[-1].filename).is_relative_to(PACKAGE)
    if isinstance(error, OwnPartError):
        return f"{place_of(error.part)}: {error}"
    if isinstance(error, KeyboardInterrupt) or (is_ours and not isinstance(error, Exception)):
        return ""
    paths = {path for path, _ in state.modules.values()}
    paths |= {place_of(part).rpartition(":")[0] for part in PARTS}
    frames = [frame for frame in stack if frame.filename in paths]
    if not frames:
        return locate_in_plugin(error)
    last = frames[-1]
    return f"{last.filename}:{last.lineno}: in {last.name}: {describe_error(error)}"


def describe_error(error: BaseException) -> str:
    """Return the class and the first line of an error, whose own ``__str__`` may fail."""
    return printable(traceback.format_exception_only(error)[-1].partition("\n")[0])


def place_of(part: Any) -> str:
    target = inspect.unwrap(part)
    code = getattr(getattr(target, "forward", target), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else target.__name__
