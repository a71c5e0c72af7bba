"""The docstrings of commands, which are their help, under ``python -OO``."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import typer


def restore_docstrings(app: typer.Typer) -> None:
    """Read the docstrings of the commands from their source, where Python has removed them.

    ``python -OO`` and ``PYTHONOPTIMIZE=2`` remove all docstrings. Without the source, the help
    keeps the options and lacks the descriptions.
    """
    for info in [app.registered_callback, *app.registered_commands]:
        if info and info.callback and not info.callback.__doc__:
            info.callback.__doc__ = _docstring(info.callback)
    for part in app.registered_groups:
        if part.typer_instance:
            restore_docstrings(part.typer_instance)


def _docstring(function: Callable[..., Any]) -> str | None:
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):  # there is no source
        return None
    (tree,) = ast.parse(source).body
    return ast.get_docstring(tree) if isinstance(tree, ast.FunctionDef) else None
