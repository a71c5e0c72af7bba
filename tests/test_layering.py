"""Imports go down: cli -> runner -> core. Files and functions stay short."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.import_graph import (
    Graph,
    circles,
    import_graph,
    imported,
    sources,
    upward,
    without_room,
)

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vitcli"
MAX_FILE = 400
MAX_FUNCTION = 60

CONSOLE = ("typer", "rich", "click")
WRITERS = ("yaml", "matplotlib", "tensorboard", "torch.utils.tensorboard", "PIL", "safetensors")
MACHINE = ("os", "sys", "pathlib", "io", "json", "tempfile", "shutil", "subprocess", "time")
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "core": ("vitcli.runner", "vitcli.cli", "vitcli.api", *CONSOLE, *WRITERS, *MACHINE),
    "runner": ("vitcli.cli", *CONSOLE),
    "cli": ("click", "yaml"),
}
HEAVY = ("torch", "torchvision", "matplotlib", "scipy", "numpy", "tensorboard")
ONLY_YAML = PACKAGE / "runner" / "experiment" / "yaml_text.py"
PICKLES = ("pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")


def files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.py"))
    assert found, "a scan that finds nothing proves nothing"
    return found


def imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the full names in import statements."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names)


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run on import: no function bodies, no code for type checkers."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if is_function or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        ):
            continue
        yield child
        yield from at_module_level(child)


def is_one_of(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def offences(source: str, forbidden: tuple[str, ...]) -> list[str]:
    """Return forbidden or relative imports anywhere in a source text."""
    names = imports(ast.walk(ast.parse(source)))
    return [name for name in names if is_one_of(name, forbidden) or name.startswith(".")]


def heavy(source: str) -> list[str]:
    """Return the heavy modules that importing this source would load."""
    return [name for name in imports(at_module_level(ast.parse(source))) if is_one_of(name, HEAVY)]


def side_effects(source: str) -> list[str]:
    """Return uses of the environment, files and the console that need no import."""
    calls = {"print", "open", "input", "exec", "eval", "__import__"}
    return [
        node.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and node.id in {*calls, "environ"}
    ]


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_only_downwards(layer):
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in files(PACKAGE / layer)
        if (names := offences(path.read_text(), FORBIDDEN[layer]))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "import yaml"),
        ("core", "import os.path"),
        ("core", "from os import environ"),
        ("core", "from vitcli.runner.files import commit"),
        ("core", "from vitcli import runner"),
        ("core", "def f():\n    import vitcli.cli.main"),
        ("core", "from torch.utils.tensorboard import SummaryWriter"),
        ("core", "from torch.utils import tensorboard"),
        ("runner", "from rich.console import Console"),
        ("runner", "if True:\n    import typer as t"),
        ("runner", "from vitcli import cli"),
        ("cli", "import click"),
        ("cli", "from click.testing import CliRunner"),
        ("core", "from . import spec"),
        ("core", "from ..runner import files"),
    ],
)
def test_the_check_finds_forbidden_imports(layer, source):
    assert len(offences(source, FORBIDDEN[layer])) == 1


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        ("core", "import osmosis"),
        ("core", "from torch.utils.checkpoint import checkpoint"),
        ("runner", "from vitcli.core import spec\nimport os, yaml"),
        ("runner", "import richness"),
    ],
)
def test_the_check_accepts_allowed_imports(layer, source):
    assert offences(source, FORBIDDEN[layer]) == []


def test_the_core_touches_no_file_console_or_environment():
    found = {
        p.name: names for p in files(PACKAGE / "core") if (names := side_effects(p.read_text()))
    }
    assert found == {}
    seen = side_effects("print(open('x').read())\nenviron['A']")
    assert sorted(seen) == ["environ", "open", "print"]


ORDER = (
    "vitcli.version",
    "vitcli.core.randomness",
    "vitcli.core.transfer",
    "vitcli.core.torch_use",
    "vitcli.core.ranks",
    "vitcli.core.spec",
    "vitcli.core.make",
    "vitcli.core.data",
    "vitcli.core.generated",
    "vitcli.core.ops",
    "vitcli.core.nn",
    "vitcli.core.models",
    "vitcli.core.metrics",
    "vitcli.core.inspect",
    "vitcli.core.objectives.pictures",
    "vitcli.core.objectives.objective",
    "vitcli.core.objectives.classify",
    "vitcli.core.objectives.views",
    "vitcli.core.objectives.mae",
    "vitcli.core.objectives.dino",
    "vitcli.core.objectives.lejepa",
    "vitcli.core.objectives.ssat",
    "vitcli.core.objectives.clip",
    "vitcli.core.objectives.fusion",
    "vitcli.core.train",
    "vitcli.runner.errors",
    "vitcli.runner.text",
    "vitcli.runner.columns",
    "vitcli.runner.files",
    "vitcli.runner.figure_style",
    "vitcli.runner.data",
    "vitcli.runner.experiment",
    "vitcli.runner.run",
    "vitcli.runner.trackers",
    "vitcli.runner.machine",
    "vitcli.runner.evaluate",
    "vitcli.runner.attn_map",
    "vitcli.runner.train",
    "vitcli.runner.weights",
    "vitcli.runner.engines",
    "vitcli.runner.study",
    "vitcli.runner.search",
    "vitcli.runner.overview",
    "vitcli.runner.visualize",
    "vitcli.runner.explain",
    "vitcli.runner.speed",
    "vitcli.api",
    "vitcli.cli.complete",
    "vitcli.cli.console",
    "vitcli.cli.options",
    "vitcli.cli.live",
    "vitcli.cli",
    "vitcli.cli.main",
    "vitcli.__main__",
)
"""Rooms from the lowest to the highest: each may import those before it."""
ROOMS_OF_ONE_FILE = {"columns", "errors", "files", "figure_style", "text"}
"""Of ``runner``; everything else there has a folder."""
PACKAGES = ("vitcli", "vitcli.core", "vitcli.core.objectives", "vitcli.runner")
"""Packages that only hold rooms; ``vitcli`` imports its public names on first use."""


@cache
def whole_graph() -> Graph:
    return import_graph(sources(PACKAGE))


def rooms(**planted: str) -> Graph:
    """Return the imports between rooms, with a line added to modules named ``room__module``."""
    graph = {name: set(targets) for name, targets in whole_graph().items()}
    for place, line in planted.items():
        name = f"vitcli.{place.replace('__', '.')}"
        graph[name] |= set(imported(line, graph))
    return {name: targets for name, targets in graph.items() if name not in PACKAGES}


def test_imports_go_down_from_room_to_room_and_never_in_a_circle():
    graph = rooms()
    assert without_room(graph, ORDER) == []
    assert upward(graph, ORDER) == []
    assert circles(graph) == []
    assert sum(map(len, graph.values())) > 500, "the imports were seen"


@pytest.mark.parametrize(
    "line",
    [
        "from vitcli.runner.train.start import start",
        "from vitcli.runner.train import start",
        "import vitcli.runner.train.start",
        "def f():\n    from vitcli.runner.train import start",
        "if TYPE_CHECKING:\n    from vitcli.runner.train.start import Request",
    ],
)
def test_the_check_finds_an_upward_import(line):
    graph = rooms(runner__run__folder=line)
    assert upward(graph, ORDER) == ["vitcli.runner.run.folder -> vitcli.runner.train.start"]
    assert circles(graph), "what it imports imports it"


def test_the_check_finds_a_circle_inside_a_room():
    graph = rooms(runner__run__folder="def f():\n    from vitcli.runner.run import listing")
    assert upward(graph, ORDER) == []
    assert any("vitcli.runner.run.listing" in circle for circle in circles(graph))


def test_the_runner_has_rooms_and_no_loose_files():
    loose = {path.stem for path in (PACKAGE / "runner").glob("*.py")} - {"__init__"}
    assert loose == ROOMS_OF_ONE_FILE


def test_no_module_imports_click():
    """Typer no longer brings it."""
    assert [p.name for p in files(PACKAGE) if offences(p.read_text(), ("click",))] == []


def test_yaml_is_imported_in_one_place():
    readers = [path for path in files(PACKAGE) if offences(path.read_text(), ("yaml",))]
    assert readers == [ONLY_YAML]


def test_importing_the_command_line_loads_nothing_heavy():
    light = [PACKAGE / "__init__.py", PACKAGE / "__main__.py", *files(PACKAGE / "cli")]
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in light
        if (names := heavy(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "loaded"),
    [
        ("import torch", 1),
        ("try:\n    from torch import nn\nexcept ImportError: pass", 1),
        ("class A:\n    import numpy", 1),
        ("def f():\n    import torch", 0),
        ("if TYPE_CHECKING:\n    import torch", 0),
        ("import torchlight", 0),
    ],
)
def test_the_check_finds_heavy_imports(source, loaded):
    assert len(heavy(source)) == loaded


def code_runners(source: str) -> list[str]:
    """Return calls that would run code from data; one module may load a pickle."""
    tree = ast.parse(source)
    found = [name for name in imports(ast.walk(tree)) if is_one_of(name, PICKLES)]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        options = {f"{option.arg}={ast.unparse(option.value)}" for option in node.keywords}
        name = ast.unparse(node.func)
        if name == "torch.load" and "weights_only=True" not in options:
            found.append(name)
        if name in ("np.load", "numpy.load") and "allow_pickle=False" not in options:
            found.append(name)
        if name in ("eval", "exec", "__import__", "yaml.load", "yaml.unsafe_load"):
            found.append(name)
    return found


def test_nothing_runs_code_from_data():
    found = {
        str(path): names for path in files(PACKAGE) if (names := code_runners(path.read_text()))
    }
    assert found == {}
    loaders = [path.name for path in files(PACKAGE) if "torch.load(" in code_of(path)]
    assert loaders == ["checkpoint.py", "unpickle.py"], "safetensors' own, and the child process"


def code_of(path: Path) -> str:
    return ast.unparse(ast.parse(path.read_text()))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "def f():\n    import marshal",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "yaml.load(text, Loader=yaml.Loader)",
    ],
)
def test_the_check_finds_code_from_data(source):
    assert len(code_runners(source)) == 1


def test_files_are_short():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in ("vitcli", "tests", ".ci", "experiments/claims", "experiments/speed")
        for path in files(ROOT / folder)
    }
    assert {name: count for name, count in lengths.items() if count > MAX_FILE} == {}
    assert max(lengths.values()) > 100, "the count is not zero by mistake"


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
    assert max(lengths.values()) > 20, "the count is not zero by mistake"
