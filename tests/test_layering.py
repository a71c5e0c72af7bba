"""Nothing runs code from data, no room names a task, and files and functions stay short.

``lint-imports`` checks which room may import which.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vitcli.core.spec import TASKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitcli"
MAX_FILE = 400
MAX_FUNCTION = 60
FOREIGN = {"TRITON_DEFAULT_FP_FUSION", "clip_grad_norm_", "clip_grads_with_norm_", "clip"}
"""Names of other software that hold the name of a task; ``clip`` is a method of arrays."""


def files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, "a scan that finds nothing proves nothing"
    return found


@cache
def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text()))]


def test_the_core_touches_no_file_console_or_environment():
    names = {"print", "open", "input", "exec", "eval", "__import__", "environ"}
    found = {
        (path.name, node.id)
        for path in files(PACKAGE / "core")
        for node in nodes(path)
        if isinstance(node, ast.Name) and node.id in names
    }
    assert found == set()


def test_one_module_loads_pickles_and_only_their_weights():
    loads = {
        path.name: {option.arg: ast.unparse(option.value) for option in call.keywords}
        for path in files(PACKAGE)
        for call in nodes(path)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.load"
    }
    assert sorted(loads) == ["unpickle.py"]
    assert loads["unpickle.py"]["weights_only"] == "True"


def names(node: ast.AST) -> Iterator[str]:
    """Yield every name that a node brings in, and its text if that is one word."""
    for field in ("id", "attr", "name", "asname", "arg", "module", "value"):
        value = getattr(node, field, None)
        if isinstance(value, str) and len(value.split()) == 1:
            yield from value.split(".")


def test_the_runner_and_the_command_line_name_no_task():
    """They know the interface of tasks. The default task is one constant, ``DEFAULT_TASK``."""
    found = {
        f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}: {name}"
        for room in ("runner", "cli", "core/train")
        for path in files(PACKAGE / room)
        for node in nodes(path)
        for name in {*names(node)} - FOREIGN
        if {*re.findall(r"[a-z]+", name.lower())} & {*TASKS}
    }
    assert found == set()


def test_files_are_short():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("vitcli", "tests", ".ci", "experiments/claims", "experiments/speed")
        for path in files(ROOT / folder)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FILE} == {}


def body_length(function: ast.FunctionDef) -> int:
    """Return the number of lines of code below the signature and the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_functions_fit_a_screen():
    lengths = {
        f"{path.relative_to(PACKAGE)}:{node.name}": body_length(node)
        for path in files(PACKAGE)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION} == {}
