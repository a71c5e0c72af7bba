"""File operations below a folder, counted, and made to fail: death before, half-way or after."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

NAMES = ("mkdir", "rmdir", "unlink", "rename", "replace", "chmod", "fsync")
DEATHS = ("before", "half", "after")
ERRORS = ("ENOSPC", "EIO", "EDQUOT", "ESTALE", "EBUSY")
"""The disk is full or broken, the quota is used up, a network file system lost or keeps a file."""


class Operations:
    """Stands in for the functions of ``os`` that change files, in this process, for good.

    Args:
        folder: Only operations below it count.
        at: The number of the operation that fails, from 0; -1 for none.
        how: One of DEATHS, or of ERRORS.
    """

    def __init__(self, folder: Path, at: int = -1, how: str = "before") -> None:
        self.folder, self.at, self.how = str(folder), at, how
        self.names: list[str] = []
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in NAMES}
        self._fdopen, self._open = os.fdopen, os.open

    def install(self) -> "Operations":
        for name in NAMES:
            setattr(os, name, self._wrapped(name))
        os.fdopen = self._open_for_writing  # type: ignore[assignment]
        os.open = self._create
        return self

    def _wrapped(self, name: str) -> Callable[..., Any]:
        def operate(target: Any, *args: Any, **options: Any) -> Any:
            below = self._is_below(target)
            path = self._path(target) if below else ""
            result = self._do(name, target, lambda: self._real[name](target, *args, **options))
            if below:
                self.note(name, path, *map(str, args))
            return result

        return operate

    def _create(self, path: Any, flags: int, *args: Any, **options: Any) -> Any:
        """Open a file; a new one is an operation, except for locks, which hold nothing."""
        new = os.O_CREAT | os.O_EXCL
        if flags & new != new or str(path).endswith(".lock"):
            return self._open(path, flags, *args, **options)
        made = self._do("create", path, lambda: self._open(path, flags, *args, **options))
        if self._is_below(path):
            self.note("create", str(path))
        return made

    def _do(self, name: str, target: Any, real: Callable[[], Any]) -> Any:
        """The operation, or its failure; one with no middle dies before it instead."""
        if not self._is_below(target):
            return real()
        if not self._is_due(name):
            return real()
        if self.how in ERRORS:
            raise self.error()
        if self.how == "after":
            real()
        die()

    def note(self, name: str, path: str, *args: str) -> None:
        """An operation has been done; ``write`` comes with the bytes, as Latin-1."""

    def _path(self, target: Any) -> str:
        return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)

    def _is_below(self, target: Any) -> bool:
        return self._path(target).startswith(self.folder)

    def _is_due(self, name: str) -> bool:
        self.names.append(name)
        return len(self.names) - 1 == self.at

    def error(self) -> OSError:
        number = getattr(errno, self.how)
        return OSError(number, os.strerror(number), self.folder)

    def _open_for_writing(self, descriptor: int, *args: Any, **options: Any) -> Any:
        file = self._fdopen(descriptor, *args, **options)
        if self._is_below(descriptor):
            return _File(self, file)
        return file


class _File:
    """A file whose ``write`` is an operation with a middle."""

    def __init__(self, operations: Operations, file: IO[bytes]) -> None:
        self._operations, self._file = operations, file
        self._path = operations._path(file.fileno())

    def write(self, content: bytes) -> int:
        operations = self._operations
        if not operations._is_due("write"):
            written = self._file.write(content)
            operations.note("write", self._path, content.decode("latin-1"))
            return written
        if operations.how != "before":
            part = len(content) if operations.how == "after" else len(content) // 2
            self._file.write(content[:part])
            self._file.flush()
        if operations.how in ERRORS:
            raise operations.error()
        die()
        raise AssertionError

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *reason: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def die() -> None:
    """At once, as by kill -9: nothing is flushed, no handler runs."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
