"""Atomic writes: after a crash, a file has either its whole old or its whole new content."""

import base64
import contextlib
import errno
import hashlib
import itertools
import json
import math
import mmap
import os
import re
import secrets
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from filelock import FileLock

from vitcli.runner.errors import ConfigError, InputError, InUseError, ResourceError
from vitcli.runner.text import is_utf8, printable

LOCK = ".lock"
"""The file in a folder whose lock a process holds while it writes into the folder."""

MAX_JSON = 1 << 28
"""Largest size in bytes of a JSON file that is read; a plan of 10,000 trials is below it."""

_locks: dict[Path, int] = {}
"""Folders that this process has locked -> descriptor of the lock file."""


@contextlib.contextmanager
def write_only_while_same(folder: Path) -> Iterator[None]:
    """Refuse each ``commit`` below a locked folder after another folder has taken its place."""
    folder = Path(os.path.abspath(folder))
    descriptor = os.open(folder / LOCK, os.O_RDONLY)  # while it is open, no file gets its inode
    _locks[folder] = descriptor
    try:
        yield
    finally:
        del _locks[folder]
        os.close(descriptor)


def require_same_folder(path: Path) -> None:
    for folder in Path(os.path.abspath(path)).parents:
        if folder not in _locks or not folder.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat((folder / LOCK).stat(), os.fstat(_locks[folder])):
                continue
        raise InUseError(
            f"{folder}: another folder has taken the place of the one that this process began; its"
            " files are where it was moved to, or deleted"
        )


def commit(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` atomically and durably.

    The content goes to a temporary file in the same folder, which is synced and renamed to
    ``path``. Then the folder is synced, so that the new name survives a power cut. If ``path`` is a
    link, its target is replaced.
    """
    require_same_folder(path)
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path}: not a regular file")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with errors_name(path):
        mode = path.stat().st_mode & 0o777 if path.exists() else None
        # mkstemp() would ignore the umask and the default rights of the folder.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    sync_folder(path.parent)


def temporary_files_of(path: Path) -> list[Path]:
    found = path.parent.glob(f".{path.name}.{'[a-z0-9_]' * 8}")
    return [path for path in found if path.is_symlink() or not path.is_dir()]


def link_before(path: Path, folder: Path) -> Path | None:
    """Return the link below a folder that leads to a file elsewhere; None for a file inside."""
    inside = (each for each in reversed(path.parents) if folder in each.parents)
    return next((each for each in inside if each.is_symlink()), None)


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Let errors of the system name a path that the user knows, also those that name none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def file_lock(path: Path, timeout: float = -1) -> FileLock:
    """Return the lock of a file, which is free as soon as its process ends, however it ends.

    On a file system without such locks, acquiring it raises an OSError.
    """
    return FileLock(path, timeout=timeout, fallback_to_soft=False)


@contextlib.contextmanager
def require_that_it_stays(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if folder.is_dir():
            raise
        raise ResourceError(
            f"{folder}: the folder was removed or renamed while vitcli worked in it"
        ) from error


def require_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}")


def require_replaceable(path: Path, what: str, mark: bytes) -> None:
    """Refuse to replace a file without the mark, a regular expression: vitcli did not write it."""
    if not os.path.exists(path):
        return
    try:
        with open_regular(path) as file:
            is_own = not os.fstat(file.fileno()).st_size
            if not is_own:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    is_own = re.search(mark, content) is not None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be replaced: {error}") from error
    if not is_own:
        raise ConfigError(f"{path}: this file is no {what} of vitcli; choose another name")


def require_utf8(path: Path) -> None:
    """Refuse a path for results that is not UTF-8: TensorBoard and others cannot write to it."""
    if not is_utf8(str(path)):
        raise ConfigError(
            f"{printable(path)}: the name is not UTF-8; rename it, or choose another -o"
        )


def make_folder(path: Path) -> None:
    if path.is_dir():
        return
    if not path.parent.exists():
        make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def make_output_folder(path: Path, option: str = "-o") -> None:
    """Create the folder of an option, or its default; check that files can be written into it."""
    try:
        make_folder(path)
        with tempfile.TemporaryFile(dir=path, prefix="."):
            pass
    except OSError as error:
        is_file = isinstance(error, FileExistsError | NotADirectoryError)
        raise (ConfigError if is_file else ResourceError)(
            f"cannot write to {path} ({error.strerror}); choose another place with {option}"
        ) from error


@contextlib.contextmanager
def scratch_folder(parent: Path | None = None, prefix: str = "vitcli-") -> Iterator[Path]:
    """Create a temporary folder; remove it at the end, also when SIGTERM or SIGHUP is the end."""
    with unwind_on_signals(), tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as folder:
        yield Path(folder)


@contextlib.contextmanager
def unwind_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, so that files which are not whole are removed.

    A signal that is ignored or has a handler stays so. A second signal acts at once.
    """
    heard = []
    if threading.current_thread() is threading.main_thread():
        signals = (signal.SIGTERM, signal.SIGHUP)
        heard = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]

    def leave(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    for number in heard:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with errors_name(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_regular(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
        raise ValueError("not a regular file")
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, limit: int) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"larger than {limit:,} bytes")
        return file.read(size + 1)


def commit_json(path: Path, value: Any) -> None:
    commit(path, to_json(value))


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


def to_hashed_json(value: dict[str, Any]) -> bytes:
    """Return values as JSON together with the SHA-256 of that JSON.

    Exactly one sequence of bytes is valid for given values, so every changed byte is detected.
    """
    return to_json(value | {"sha256": sha256(to_json(value))})


def parse_strict_json(text: str) -> Any:
    """Parse JSON; refuse NaN and infinity in every spelling, such as 1e999."""
    try:
        return json.loads(text, parse_constant=_parse_finite, parse_float=_parse_finite)
    except RecursionError as error:
        raise ValueError("too many brackets") from error


def _parse_finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Return the values in a JSON file of vitcli, and check the file's hash if it has one."""
    content = read_bounded(path, MAX_JSON)
    value = parse_strict_json(content.decode())
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if not is_unchanged(value, content):
        raise ValueError("it does not match its hash")
    return value


def read_hashed(path: Path) -> dict[str, Any] | None:
    """Return the values in a file that ``to_hashed_json`` made; None without a file."""
    try:
        value = read_json(path)
        if not value.pop("sha256", None):
            raise ValueError("it has no hash")
        return value
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: edited or damaged ({error}); restore it, such as with git"
        ) from error


def readable_json(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; {} if it is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def is_unchanged(value: dict[str, Any], content: bytes) -> bool:
    """Return whether ``to_hashed_json`` wrote these bytes; true for values without a hash."""
    values = {name: each for name, each in value.items() if name != "sha256"}
    return values == value or content.replace(b"\r\n", b"\n") == to_hashed_json(values)


def policy_hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def free_name(path: Path, word: str) -> Path:
    """Return a path beside another one that does not exist, such as ``seed0.old1``."""
    numbered = (path.with_name(f"{path.name}.{word}{n}") for n in itertools.count(1))
    return next(free for free in numbered if not os.path.lexists(free))
