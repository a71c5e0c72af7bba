"""No task's name stands in the runner or the command line: they know the interface of tasks only.

Searched: the syntax trees of ``runner``, ``cli`` and ``core/train``, with imports, identifiers,
docstrings and every other string. Comments are not part of a syntax tree. Allowed:

* the English verbs and nouns among the names, in a sentence (a string of several words);
* the longer names of shipped experiments, such as ``pretrain-NAME``, in examples of commands;
* a method of NumPy and torch, and the names in ``FOREIGN``.

The default task is one constant, ``DEFAULT_TASK`` in ``core/spec/task.py``.
"""

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from vitcli.core.spec import TASKS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitcli"
SEARCHED = ("runner", "cli", "core/train")
ENGLISH = {"classify", "clip", "fusion"}
FOREIGN = {"TRITON_DEFAULT_FP_FUSION", "clip_grad_norm_", "clip_grads_with_norm_"}
"""Names of other software, each of which contains the name of a task."""
METHODS = {"clip"}
"""Methods of arrays."""


@cache
def experiments() -> tuple[str, ...]:
    """The names of shipped experiments that are no task's names too, the longest first."""
    found = {path.stem for path in ROOT.glob("experiments/*.yaml")} - set(TASKS)
    return tuple(sorted(found, key=len, reverse=True))


def words(text: str) -> set[str]:
    """Return the words of a text or identifier in lower case: ``MyTask_name`` has three."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", text)}


def found_in_text(text: str, names: Collection[str]) -> set[str]:
    for known in (*FOREIGN, *experiments()):
        text = text.replace(known, " ")
    found = words(text) & set(names)
    return found - ENGLISH if len(text.split()) > 1 else found


def identifiers(node: ast.AST) -> Iterator[str]:
    """Yield every name that a node brings in."""
    for field in ("id", "attr", "name", "asname", "arg", "module", "rest"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield from value.split(".")
    if isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    yield from getattr(node, "kwd_attrs", ())


def task_names(source: str, names: Collection[str]) -> list[str]:
    """Return ``LINE: NAME`` for each place where a source text names a task."""
    tree, found = ast.parse(source), []
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        seen: set[str] = set()
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            seen = found_in_text(text, names)
        for identifier in identifiers(node):
            is_method = isinstance(node, ast.Attribute) and id(node) in called
            if identifier not in FOREIGN and not (is_method and identifier in METHODS):
                seen |= words(identifier) & set(names)
        found += [f"{getattr(node, 'lineno', 0)}: {name}" for name in sorted(seen)]
    return found


def test_the_runner_and_the_command_line_name_no_task():
    files = [path for room in SEARCHED for path in sorted((PACKAGE / room).rglob("*.py"))]
    assert len(files) > 100, "a scan that finds nothing proves nothing"
    found = {
        str(path.relative_to(PACKAGE)): places
        for path in files
        if (places := task_names(path.read_text(), TASKS))
    }
    assert found == {}
