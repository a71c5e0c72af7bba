"""Nothing runs code from data, and no room names a task; ``lint-imports`` checks the imports."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from vitcli.core.spec import TASKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitcli"
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
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "load"
        if ast.unparse(call.func) == "torch.load"
    }
    assert loads.keys() <= {"tensors.py"}
    assert all(options["weights_only"] == "True" for options in loads.values())


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
