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
            commit = _git(root, "rev-parse", "HEAD")
            return commit, bool(_git(root, "status", "--porcelain", "--untracked-files=no"))
        stored = json.loads((PACKAGE / COMMIT).read_text())
        return stored["commit"], stored["dirty"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return None, None


def _git(root: Path, *words: str) -> str:
    import subprocess

    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
