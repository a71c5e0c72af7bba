"""The version of vitcli, its commit, and the folder that holds the package."""

from pathlib import Path

__version__ = "1.1.0"

PACKAGE = Path(__file__).resolve().parent
COMMIT = "commit.json"
"""File in a built package with the commit that it was built from."""


def source_commit() -> tuple[str | None, bool | None]:
    """Return the commit of the code and whether it had changes; None if unknown.

    A checkout asks git; a built package was told when it was built.
    """
    import json  # here, because the program imports this module before all others
    import subprocess

    root = PACKAGE.parent
    try:
        if (root / ".git").exists():
            command = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch"]
            text = subprocess.check_output(
                [*command, "--untracked-files=no"], stderr=subprocess.DEVNULL, text=True, timeout=10
            )
            first, *lines = text.splitlines()
            return first.removeprefix("# branch.oid "), any(line[0] != "#" for line in lines)
        stored = json.loads((PACKAGE / COMMIT).read_text())
        return stored["commit"], stored["dirty"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return None, None
