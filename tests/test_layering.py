"""Starting is light, nothing runs code from data, and files and functions stay short.

``lint-imports`` checks which room may import which.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitcli"
MAX_FILE = 400
MAX_FUNCTION = 60
HEAVY = ("torch", "torchvision", "matplotlib", "scipy", "numpy", "tensorboard")


def files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, "a scan that finds nothing proves nothing"
    return found


def calls(source: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]


def test_importing_the_command_line_loads_nothing_heavy():
    code = "import sys, vitcli.__main__, vitcli.cli.main; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(HEAVY) & set(run.stdout.split()) == set()


def test_the_core_touches_no_file_console_or_environment():
    names = {"print", "open", "input", "exec", "eval", "__import__", "environ"}
    found = {
        (path.name, node.id)
        for path in files(PACKAGE / "core")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id in names
    }
    assert found == set()


def test_one_module_loads_pickles_and_only_their_weights():
    loads = {
        path.name: {option.arg: ast.unparse(option.value) for option in call.keywords}
        for path in files(PACKAGE)
        for call in calls(path.read_text())
        if ast.unparse(call.func) == "torch.load"
    }
    assert sorted(loads) == ["unpickle.py"]
    assert loads["unpickle.py"]["weights_only"] == "True"


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
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FUNCTION} == {}
