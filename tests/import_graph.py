"""The imports between modules, including lazy imports and imports for type checkers."""

import ast
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

Graph = dict[str, set[str]]


def sources(package: Path) -> dict[str, str]:
    """Return dotted module name -> source text, for every module below a package."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    assert found, "a scan that finds nothing proves nothing"
    return found


def import_graph(modules: Mapping[str, str]) -> Graph:
    """Return module -> the modules of the same package that it imports anywhere in its text."""
    return {name: set(imported(text, modules)) - {name} for name, text in modules.items()}


def imported(text: str, modules: Container[str]) -> Iterator[str]:
    """Yield the names in ``modules`` that a source text imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name in modules:
                    yield name
                elif node.module in modules:
                    yield node.module


def circles(graph: Graph) -> list[list[str]]:
    """Return each import circle as the path from a module back to itself."""
    found, done = [], set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
            return
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def upward(graph: Graph, order: tuple[str, ...]) -> list[str]:
    """Return imports from a room to one above it, given the rooms from the lowest to the highest.

    A room is a module or a package; a module belongs to the room with the longest name that fits.
    """

    def rank(name: str) -> int | None:
        fitting = [room for room in order if name == room or name.startswith(f"{room}.")]
        return order.index(max(fitting, key=len)) if fitting else None

    found = []
    for name, targets in sorted(graph.items()):
        for target in sorted(targets):
            here, there = rank(name), rank(target)
            if here is not None and there is not None and here < there:
                found.append(f"{name} -> {target}")
    return found


def without_room(graph: Graph, order: tuple[str, ...]) -> list[str]:
    """Return the modules that belong to no room."""
    rooms = {n for n in graph for room in order if f"{n}.".startswith(f"{room}.")}
    return sorted(set(graph) - rooms)
