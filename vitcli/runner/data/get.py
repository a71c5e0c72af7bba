"""Bring named data sets to this machine, and say what is here: for ``vitcli data``."""

import contextlib
import difflib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.spec import DATA_SETS
from vitcli.runner.data.cache import sidecar
from vitcli.runner.data.catalogue import CATALOGUE, Row, folder_path
from vitcli.runner.data.decode import Listener, array_file, decode_named, folder_array_file
from vitcli.runner.data.download import UnusableError, check, download
from vitcli.runner.data.find import (
    Source,
    download_folder,
    find_in,
    find_source,
    is_offline,
    missing,
)
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.files import commit
from vitcli.runner.pictures import shown


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """Where a data set is: ``place`` is None where it is nowhere on disk.

    ``kind`` is embedded, archive, files, folders or missing; ``decoded`` are its cached arrays.
    """

    name: str
    place: Path | None
    kind: str
    decoded: tuple[Path, ...]


def silent(_: str) -> None:
    """The default listener."""


def data_status(name: str, data_dir: Path | None = None) -> DataStatus:
    """Where a data set is found and which decoded copies the cache has; reads no image.

    Raises:
        ConfigError: No data set has this name.
    """
    place: Path | None
    if path := folder_path(name):
        place, kind = (path, "folders") if path.is_dir() else (None, "missing")
        first = folder_array_file(path, None)
    elif _known(name) == "shapes":
        return DataStatus(name=name, place=None, kind="embedded", decoded=())
    else:
        source = find_source(name, data_dir)
        place, kind = (source.path, source.kind) if source else (None, "missing")
        first = array_file(name, None)
    pattern = first.name.replace("-native", "-*")
    files = sorted(first.parent.glob(pattern)) if first.parent.is_dir() else []
    decoded = tuple(path for path in files if sidecar(path).is_file())
    return DataStatus(name=name, place=place, kind=kind, decoded=decoded)


def get_data(
    name: str, source: str | None = None, *, offline: bool = False, on_message: Listener = silent
) -> DataStatus:
    """Bring a data set into the cache, from its sources, or from a URL or PATH; then decode it.

    A URL is that of the archive, or of the folder that holds the files.

    Raises:
        InputError: It could not be had, or is not the published one.
        ConfigError: No data set has this name, or it needs no download.
    """
    if folder_path(name) or _known(name) == "shapes":
        raise ConfigError(f"{name} needs no download; use it: vitcli train -s data.name={name}")
    row = CATALOGUE[name]
    if source is None:
        found = obtain(name, None, offline, on_message)
    elif source.startswith(("http://", "https://")):
        if is_offline(offline):
            raise InputError(f"{shown(source)} cannot be fetched offline; give a PATH")
        found = _fetch(name, on_message, source.rstrip("/"))
    else:
        found = _copy(row, Path(source).expanduser(), on_message)
    decode_named(row, found, None, on_message)
    return data_status(name)


def obtain(name: str, data_dir: Path | None, offline: bool, on_message: Listener) -> Source:
    """Find a named data set, or download it where that is allowed.

    Raises:
        InputError: It is not there; the text says what to type.
    """
    if source := find_source(name, data_dir):
        return source
    if data_dir is not None or is_offline(offline):
        raise missing(name, data_dir)
    return _fetch(name, on_message)


def _known(name: str) -> str:
    if name not in DATA_SETS:
        close = difflib.get_close_matches(name, DATA_SETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(DATA_SETS)}"
        raise ConfigError(f"unknown data set {shown(name)!r}; {hint}")
    return name


def _fetch(name: str, on_message: Listener, url: str | None = None) -> Source:
    row, folder = CATALOGUE[name], download_folder(name)
    with _writing(folder):
        for file in row.downloads:
            urls = file.urls
            if url:
                urls = (url,) if row.archive else (f"{url}/{file.name}",)
            download(file, folder, on_message, urls)
    return _found(name)


def _found(name: str) -> Source:
    source = find_in(name, download_folder(name))
    assert source is not None
    return source


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{shown(folder)} cannot be written: {error.strerror or error};"
            " set VITCLI_CACHE to a folder with room"
        ) from error


def _copy(row: Row, path: Path, on_message: Listener) -> Source:
    """Copy an archive, original files or class folders into the cache; the archive is checked."""
    name = row.info.name
    source = Source("archive", path) if path.is_file() and row.archive else find_in(name, path)
    if source is None:
        raise missing(name, path)
    target = download_folder(name)
    on_message(f"copying {shown(source.path)} to {shown(target)}")
    content = _checked_archive(row, source.path) if source.kind == "archive" else b""
    with _writing(target):
        target.mkdir(parents=True, exist_ok=True)
        if source.kind == "archive":
            commit(target / row.downloads[0].name, content)
        elif source.kind == "files":
            folder = target / row.folder
            folder.mkdir(parents=True, exist_ok=True)
            for file in row.files:
                commit(folder / file, (source.path / file).read_bytes())
        else:
            for split in ("train", "test"):
                shutil.copytree(source.path / split, target / split, dirs_exist_ok=True)
    return _found(name)


def _checked_archive(row: Row, path: Path) -> bytes:
    try:
        content = path.read_bytes()
        check(row.downloads[0], content)
    except (OSError, UnusableError) as error:
        raise InputError(f"{shown(path)} is not the published archive: {shown(error)}") from error
    return content
