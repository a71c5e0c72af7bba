"""Own code of a user: load it, hash it, and run nothing that the user has not named in this call.

Files come from ``code:`` of an experiment file outside run folders, from ``--code``, or from an
import in Python. Each run folder has copies, in ``code/``. They run only with ``--trust-code``, or
in a worker, whose driver has named the files. A part that is defined in Python, but in no such
file, exists in this process only.
"""

import ast
import contextlib
import inspect
import os
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points, version
from importlib.util import decode_source, find_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pydantic import BaseModel

from vitcli.core.spec import FAMILIES, DataSpec, ExperimentSpec, ModelSpec
from vitcli.core.spec.data import split_name
from vitcli.core.spec.metrics import METRICS
from vitcli.core.spec.own import NEEDS_CODE, PARTS, PYTHON, TEXTS, registering, text_of
from vitcli.core.spec.rows import choice_of, table_of
from vitcli.runner.errors import OwnCodeError
from vitcli.runner.experiment.torch_state import unchanged
from vitcli.runner.files import commit, make_folder, read_bounded, sha256
from vitcli.runner.text import printable
from vitcli.version import PACKAGE

FOLDER = "code"
"""Folder inside a run folder with the copies."""
GROUP = "vitcli.parts"
"""Entry point of installed packages with parts."""
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class CodeFile:
    """A file of own code, as it was read and run."""

    path: Path
    content: bytes
    imports: frozenset[str]
    """Names of the other files of own code that it imports."""

    @property
    def sha256(self) -> str:
        return sha256(self.content)


@dataclass
class _State:
    """What this process has loaded, and which copies it may load."""

    files: dict[str, CodeFile] = field(default_factory=dict)
    """File name, such as ``sigmoid.py`` -> the file."""
    trusts_copies: bool = False
    """Whether copies in run folders may be loaded."""
    is_command: bool = False
    """Whether messages may name options of the command line."""
    typed: set[str] = field(default_factory=set)
    """Experiment files that the user has typed in this call; only they may name code."""
    packages: set[str] | None = None
    """Installed packages whose parts are loaded; None before the first look."""


state = _State()


def load(paths: Sequence[Path]) -> dict[str, str]:
    """Run files of own code, which add their parts to vitcli's tables; return name -> SHA-256."""
    contents = {path.name: _read(path) for path in paths}
    names = [path.name for path in paths]
    if double := next((name for name in contents if names.count(name) > 1), None):
        raise OwnCodeError(f"code: two files are called {double}; rename one of them")
    return load_files(contents)


def load_files(contents: Mapping[str, tuple[Path, bytes]]) -> dict[str, str]:
    """Run files whose content is known: name -> (path, content). See ``load``."""
    new = {}
    for name, (path, content) in contents.items():
        old = state.files.get(name)
        if _is_imported(path):
            _check_file(path, content, {*contents, *state.files})
            _refuse_later_change(path, content)
        elif old and old.content != content:
            raise OwnCodeError(
                f"{path}: another version of {name} is loaded already, from {old.path}"
            )
        elif not old and _hides_module(path.stem):
            raise OwnCodeError(f"code: {path.name} has the name of another module; rename it")
        if not old or old.content != content:
            new[name] = _check_file(path, content, {*contents, *state.files})
    state.files |= new
    try:
        for name in new:
            _import(name)
    except BaseException:
        for name, file in new.items():
            if not _is_imported(file.path):
                sys.modules.pop(Path(name).stem, None)
            del state.files[name]
        raise
    return {name: state.files[name].sha256 for name in contents}


def _check_file(path: Path, content: bytes, names: set[str]) -> CodeFile:
    """Return a file, after a look at what it imports."""
    try:
        tree = ast.parse(decode_source(content), str(path))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise OwnCodeError(f"{path}:{line}: not {error.encoding}; save it as UTF-8") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise OwnCodeError(f"{path}:{line}: {getattr(error, 'msg', error)}") from error
    except (RecursionError, MemoryError) as error:
        raise OwnCodeError(f"{path}: an expression is nested too deeply for Python") from error
    used = set()
    for line, module in _imports(tree):
        beside = path.parent / module
        if f"{module}.py" in names:
            used.add(f"{module}.py")
        elif module == "vitcli":  # in a clone, its source is beside the file
            continue
        elif beside.with_suffix(".py").is_file() or (beside / "__init__.py").is_file():
            raise OwnCodeError(
                f"{path}:{line}: imports {module}, a file beside it; list it too:"
                f" code: [{path.name}, {module}.py]"
            )
    return CodeFile(path, content, frozenset(used - {path.name}))


def _hides_module(name: str) -> bool:
    """Return whether a module of Python or of a package has this name; files here do not count."""
    if name in sys.stdlib_module_names or name in sys.modules:
        return True
    spec = find_spec(name)
    return bool(spec and spec.origin and Path(spec.origin).parent.resolve() != Path.cwd())


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first name of each imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]


def _is_imported(path: Path) -> bool:
    module = sys.modules.get(path.stem)
    file = getattr(module, "__file__", None)
    is_ours = getattr(module, "__loader__", None) is _finder
    return bool(file) and not is_ours and Path(str(file)).resolve() == path.resolve()


def _refuse_later_change(path: Path, content: bytes) -> None:
    imported = TEXTS.get(path.name, "").splitlines()
    if imported and imported != decode_source(content).splitlines():
        raise OwnCodeError(
            f"{path} was changed after it was imported; type importlib.reload({path.stem})"
        )


def _load_imported(name: str) -> None:
    module = sys.modules.get(Path(name).stem) if name in TEXTS else None
    if file := getattr(module, "__file__", None):
        load([Path(file)])


def _read(path: Path) -> tuple[Path, bytes]:
    try:
        if path.suffix != ".py" or not path.stem.isidentifier():
            raise OwnCodeError(f"code: {path} is not a Python file such as my_part.py")
        return path, read_bounded(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise OwnCodeError(f"code: {path}: {getattr(error, 'strerror', None) or error}") from error


class _Finder(MetaPathFinder, SourceLoader):  # type: ignore[misc]  # as in importlib itself
    """Imports the loaded files by name, from the bytes that were hashed. It writes no bytecode."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if f"{name}.py" in state.files else None

    def get_filename(self, name: str) -> str:
        return str(state.files[f"{name}.py"].path)

    def get_data(self, path: str | bytes) -> bytes:
        return state.files[Path(os.fsdecode(path)).name].content

    def exec_module(self, module: ModuleType) -> None:
        place = self.get_filename(module.__name__)
        with unchanged(place), registering(f"{module.__name__}.py"):
            super().exec_module(module)


_finder = _Finder()


def _import(name: str) -> None:
    """Run one file, unless another one has imported it already."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    try:
        __import__(Path(name).stem)
    except (OwnCodeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not (place := blame(error)) and not isinstance(error, Exception):  # a signal
            raise
        raise OwnCodeError(place or f"{name}: {describe_error(error)}") from error


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
        except OwnCodeError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:
            raise OwnCodeError(
                f"package {name}: its parts cannot be loaded: {describe_error(error)}"
            ) from error
        state.packages.add(name)
    return bool(state.packages)


def require(code: Mapping[str, str], copies: Path | None) -> None:
    """Refuse stored code that the user has not named in this call; load it if it is trusted.

    ``code`` is the SHA-256 of each file, and the version of each package.
    """
    files = {name: digest for name, digest in code.items() if name.endswith(".py")}
    missing = missing_code(code)
    if missing and copies and state.trusts_copies and files.keys() >= set(missing):
        load_copies({name: files[name] for name in missing}, copies)
    elif missing:
        raise OwnCodeError(needed(missing, copies))
    for name, digest in code.items():
        if _differs(name, digest):
            part, file = name.removeprefix(PYTHON), state.files.get(name)
            raise OwnCodeError(
                f"{file.path if file else part}: differs from the {part} of the run (SHA-256"
                f" {digest[:12]}); name the version that it was trained with"
                + (f", or {copies / name}" if copies and (copies / name).is_file() else "")
            )


def load_copies(hashes: Mapping[str, str], copies: Path) -> None:
    """Run copies of files, which must have these hashes."""
    contents = {name: _read(copies / name) for name in hashes}
    for name, (path, content) in contents.items():
        if sha256(content) != hashes[name]:
            raise OwnCodeError(f"{path}: the file was changed after the run began")
    load_files(contents)


def missing_code(code: Mapping[str, str]) -> list[str]:
    """Return the files and parts that are not loaded, and the packages that are not installed."""
    if not all(name.endswith(".py") or name.startswith(PYTHON) for name in code):
        load_packages()
    for name in code:
        with contextlib.suppress(OwnCodeError):  # changed since its import: it is missing
            _load_imported(name)
    parts = {name for name in TEXTS if name.startswith(PYTHON)}
    return [name for name in code if name not in {*state.files, *(state.packages or ()), *parts}]


def unknown_code(code: Mapping[str, str]) -> list[str]:
    """Return ``missing_code``, and what differs from this code."""
    missing = missing_code(code)
    return [name for name in code if name in missing or _differs(name, code[name])]


def require_parts(spec: ExperimentSpec, copies: Path | None = None) -> None:
    """Refuse to build the own parts of an experiment from any code but its own."""
    missing = missing_code(spec.code)
    require({name: spec.code[name] for name in spec.code if name not in missing}, copies)
    same = [same_part(name.removeprefix(PYTHON), spec.code) for name in missing]
    known = {*spec.code} - {*missing} | {f"{part.__module__}.py" for part in same if part}
    loaded = {*state.files, *(state.packages or ()), *TEXTS}
    if sources_of(spec) & loaded - known:
        raise OwnCodeError(needed(missing or [*spec.code], copies))


def _differs(name: str, digest: str) -> bool:
    return name not in (state.packages or ()) and _identity(name) != digest


def exists_only_here(spec: ExperimentSpec) -> bool:
    return any(name.startswith(PYTHON) for name in code_to_keep(spec))


def needed(missing: Sequence[str], copies: Path | None) -> str:
    if parts := [name.removeprefix(PYTHON) for name in missing if name.startswith(PYTHON)]:
        return (
            f"{', '.join(parts)}: defined in Python, and not in this process; define it here first,"
            " or train with parts from a file to use the run anywhere"
        )
    if packages := [name for name in missing if not name.endswith(".py")]:
        return f"own code is needed: install the package {packages[0]}, or open the run where it is"
    ways = []
    if not state.is_command or all(os.path.isfile(name) for name in missing):
        ways.append(_how_to_load(missing))
    if state.is_command and copies and all((copies / name).is_file() for name in missing):
        ways.append(f"--trust-code to run the copy in {copies}")
    advice = ", or ".join(ways) or "--code and its path"
    return f"own code is needed: {', '.join(missing)}; type {advice}"


def _how_to_load(paths: Sequence[str]) -> str:
    if not state.is_command:
        return f"import {', '.join(Path(path).stem for path in paths)}"
    return " ".join(shlex.join(["--code", path]) for path in paths)


def same_part(name: str, code: Mapping[str, str]) -> Any:
    """Return the loaded part with the text that ``code`` has of one from Python; None if none."""
    if digest := code.get(f"{PYTHON}{name}"):
        part = next((part for part in reversed(PARTS) if PARTS[part] == name), None)
        return part if sha256(text_of(part).encode()) == digest else None
    return None


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
    if not is_typed or is_below_run(origin):
        advice = _how_to_load([str(origin.parent / path) for path in value or ["FILE"]])
        raise OwnCodeError(f"{origin}: {what} cannot name code; type {advice}")
    return load([origin.parent / path for path in value])


def is_below_run(path: Path) -> bool:
    """Return whether a file is in a folder, or below one, that vitcli or a sender made a run."""
    marks = ("status.json", "meta.json", "checkpoints", FOLDER)
    return any(
        (parent / "plan.json").exists()
        or ((parent / "config.yaml").exists() and any((parent / mark).exists() for mark in marks))
        for parent in path.resolve().parents
    )


def options() -> list[str]:
    if state.trusts_copies:
        return ["--trust-code"]
    return [word for file in state.files.values() for word in ("--code", str(file.path))]


def sources_of(spec: BaseModel) -> set[str]:
    """Return the files and packages whose parts a spec uses; those of a teacher do not count."""
    sources = set()
    for name, info in type(spec).model_fields.items():
        if name in getattr(spec, "derived", ()):
            continue
        value = getattr(spec, name)
        table, choice = table_of(info), choice_of(info)
        if table is not None:
            sources.add(table[value].source)
        elif isinstance(value, BaseModel):
            sources |= sources_of(value)
            if isinstance(value, DataSpec) and (reader := split_name(value.name)):
                sources.add(reader[0].source)
            if choice:
                sources.add(choice.table[getattr(value, choice.key)].source)
    return sources - {""}


def code_of(spec: ExperimentSpec) -> dict[str, str]:
    """Return the own code that an experiment uses: name -> SHA-256 or version.

    That is the files of its parts and of loaded metrics, and the files that these import.
    """
    return with_imports(sources_of(spec) | {row.source for row in METRICS.values() if row.source})


def sources_of_model(spec: ModelSpec) -> set[str]:
    return (sources_of(spec) | {FAMILIES[spec.family].source}) - {""}


def code_to_keep(spec: ExperimentSpec) -> dict[str, str]:
    """Return the own code that a training runs: that of the experiment and of its teacher."""
    teacher = spec.task.taught_by
    return {**spec.code, **(teacher.code if teacher else {})}


def with_imports(names: Iterable[str]) -> dict[str, str]:
    """Return name -> SHA-256 or version, of files and packages and of what the files import."""
    todo, seen = list(names), set()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            _load_imported(name)
            todo += state.files[name].imports if name in state.files else []
    return {name: _identity(name) for name in sorted(seen)}


def _identity(source: str) -> str:
    if source in state.files:
        return state.files[source].sha256
    if not source.startswith(PYTHON):
        return version(source)
    if text := TEXTS.get(source):
        return sha256(text.encode())
    part = source.removeprefix(PYTHON)
    if source not in TEXTS:  # a run that was read has it, but its code is not loaded
        raise OwnCodeError(f"no part is called {part!r}{NEEDS_CODE}")
    raise OwnCodeError(f"{part}: Python does not know its source text; define it in a file")


def save_copies(code: Mapping[str, str], folder: Path) -> None:
    for name in code:
        if name in state.files:
            make_folder(folder / FOLDER)
            commit(folder / FOLDER / name, state.files[name].content)


def texts(spec: ExperimentSpec) -> dict[str, str]:
    """Return the bytes of each loaded file as Latin-1, for the other processes of a training."""
    names = code_to_keep(spec).keys() & state.files.keys()
    return {name: state.files[name].content.decode("latin-1") for name in sorted(names)}


def blame(error: BaseException) -> str:
    """Return file, line and text of an error inside own code; empty if it is not from there.

    Ctrl-C, and the end of the process by another signal, are not from there.
    """
    stack = traceback.extract_tb(error.__traceback__)
    is_ours = bool(stack) and Path(stack[-1].filename).is_relative_to(PACKAGE)
    if isinstance(error, KeyboardInterrupt) or (is_ours and not isinstance(error, Exception)):
        return ""
    paths = {str(file.path) for file in state.files.values()}
    paths |= {place_of(part).rpartition(":")[0] for part in PARTS}
    frames = [frame for frame in stack if frame.filename in paths]
    if not frames:
        return ""
    last = frames[-1]
    return f"{last.filename}:{last.lineno}: in {last.name}: {describe_error(error)}"


def describe_error(error: BaseException) -> str:
    """Return the class and the first line of an error, whose own ``__str__`` may fail."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {printable(text).partition(chr(10))[0]}".removesuffix(": ")


def place_of(part: Any) -> str:
    target = inspect.unwrap(part)
    code: CodeType | None = getattr(getattr(target, "forward", target), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else target.__name__
