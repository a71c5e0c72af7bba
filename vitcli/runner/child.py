"""Python processes of vitcli's own, which import nothing from the working folder. No torch."""

import os
import sys

from vitcli.version import PACKAGE


def python_command(*words: str) -> list[str]:
    """Return a command of Python, such as for ``-m`` and a module of this package.

    ``-P``: Python must not import a file or folder of the working folder, such as ``vitcli``.
    """
    return [sys.executable, "-P", *words]


def child_environment() -> dict[str, str]:
    """Return the environment of ``python_command``, which finds this package without a folder."""
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
