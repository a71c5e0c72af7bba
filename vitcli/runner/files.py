"""The one write path: a file is either its old self or its whole new self, whatever happens."""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError


def commit(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically and durably.

    A temporary file in the same folder is written, synced and renamed over ``path``; then the
    folder is synced, so that the new name survives a power cut. A link is followed; what is there
    and is no regular file (a device, a folder) is left alone.

    Raises:
        ConfigError: ``path`` is there and is no regular file.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)  # not the temporary one, of which nobody knows
        raise
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def require_folder(path: Path, option: str = "") -> None:
    """Refuse a file whose folder is not there: before the work, not after it.

    Raises:
        ConfigError: Begins with ``option``, such as ``--checklist``.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}".lstrip())


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, so that they survive a power cut."""
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def commit_json(path: Path, value: Any) -> None:
    commit(path, to_json(value))


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def sealed(value: dict[str, Any]) -> bytes:
    """As JSON, with the hash of itself: the only bytes that are valid for these values."""
    seal = sha256(to_json(value))
    return to_json(value | {"sha256": seal})


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
