"""A file of own code, and what it imports. Nothing is run."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import decode_source, find_spec
from pathlib import Path

from vitcli.runner.errors import OwnCodeError


@dataclass(frozen=True)
class CodeFile:
    """A file of own code, as it was read and run."""

    path: Path
    content: bytes
    imports: frozenset[str]
    """Names of the other files of own code that it imports."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def check_file(path: Path, content: bytes, names: set[str]) -> CodeFile:
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


def hides_module(name: str) -> bool:
    """Return whether a module of Python or of a package has this name; files here do not count."""
    if name in sys.stdlib_module_names or name in sys.modules:
        return True
    found = find_spec(name)
    return bool(found and found.origin and Path(found.origin).parent.resolve() != Path.cwd())


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the first name of each imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name.partition(".")[0]) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.lineno, node.module.partition(".")[0]
