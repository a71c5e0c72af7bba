"""No task's name stands in the runner or the command line: they know the interface of tasks only.

The names of modules, variables, fields and one-word strings are searched; a sentence may hold the
English words among them. The default task is one constant, ``DEFAULT_TASK``.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vitcli.core.spec import TASKS

PACKAGE = Path(__file__).parents[1] / "vitcli"
SEARCHED = ("runner", "cli", "core/train")
FOREIGN = {"TRITON_DEFAULT_FP_FUSION", "clip_grad_norm_", "clip_grads_with_norm_", "clip"}
"""Names of other software; ``clip`` is a method of arrays."""


def names(node: ast.AST) -> Iterator[str]:
    """Yield every name that a node brings in, and its text if that is one word."""
    for field in ("id", "attr", "name", "asname", "arg", "module", "value"):
        value = getattr(node, field, None)
        if isinstance(value, str) and len(value.split()) == 1:
            yield from value.split(".")


def test_the_runner_and_the_command_line_name_no_task():
    files = [path for room in SEARCHED for path in sorted((PACKAGE / room).rglob("*.py"))]
    assert len(files) > 100, "a scan that finds nothing proves nothing"
    found = {
        f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}: {name}"
        for path in files
        for node in ast.walk(ast.parse(path.read_text()))
        for name in {*names(node)} - FOREIGN
        if {*re.findall(r"[a-z]+", name.lower())} & {*TASKS}
    }
    assert found == set()
