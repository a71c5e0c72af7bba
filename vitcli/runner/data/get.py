"""Bring named data sets to this machine, and say what is here: for ``vitcli data``."""

import difflib
import os
import shutil
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
    writing,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit
from vitcli.runner.text import printable


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
    kind, place = _whereabouts(name, data_dir)
    path = folder_path(name)
    first = folder_array_file(path, None) if path else array_file(name, None)
    files = sorted(first.parent.glob(first.name.replace("-native", "-*")))
    decoded = tuple(path for path in files if sidecar(path).is_file())
    return DataStatus(name=name, place=place, kind=kind, decoded=decoded)


def _whereabouts(name: str, data_dir: Path | None) -> tuple[str, Path | None]:
    if path := folder_path(name):
        return ("folders", path) if path.is_dir() else ("missing", None)
    if _known(name) == "shapes":
        return "embedded", None
    source = find_source(name, data_dir)
    return (source.kind, source.path) if source else ("missing", None)


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
        _renew(row, offline, on_message)
    elif source.startswith(("http://", "https://")):
        if is_offline(offline):
            raise InputError(f"{printable(source)} cannot be fetched offline; give a PATH")
        decode_named(row, _fetch(name, on_message, source.rstrip("/")), None, on_message)
    else:
        _copy(row, Path(os.path.expanduser(source)), on_message)
    return data_status(name)


def _renew(row: Row, offline: bool, on_message: Listener) -> None:
    """Decode what is there, or fetch it; a damaged copy in the cache is fetched again."""
    name = row.info.name
    found = obtain(name, None, offline, on_message)
    try:
        decode_named(row, found, None, on_message)
    except InputError as error:
        if is_offline(offline) or not found.path.is_relative_to(download_folder(name)):
            raise
        on_message(str(error))
        shutil.rmtree(download_folder(name))
        decode_named(row, _fetch(name, on_message), None, on_message)


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
        raise ConfigError(f"unknown data set {printable(name)!r}; {hint}")
    return name


def _fetch(name: str, on_message: Listener, url: str | None = None) -> Source:
    row, folder = CATALOGUE[name], download_folder(name)
    with writing(folder):
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


def _copy(row: Row, path: Path, on_message: Listener) -> None:
    """Check an archive, original files or class folders, and copy them into the cache.

    Folders are decoded where they lie; their copy keeps its times, so the arrays fit it too.
    """
    name = row.info.name
    source = Source("archive", path) if path.is_file() and row.archive else find_in(name, path)
    if source is None:
        raise missing(name, path)
    target = download_folder(name)
    if source.kind == "archive":
        content = _checked_archive(row, source.path)
        with writing(target):
            target.mkdir(parents=True, exist_ok=True)
            commit(target / row.downloads[0].name, content)
        source = _found(name)
    decode_named(row, source, None, on_message)
    if source.kind != "archive":
        on_message(f"copying {printable(source.path)} to {printable(target)}")
        with writing(target):
            _copy_folder(row, source, target)


def _copy_folder(row: Row, source: Source, target: Path) -> None:
    """Copy beside the target, then put the copy in its place."""
    staging = target.parent / f".{target.name}.new"
    shutil.rmtree(staging, ignore_errors=True)
    if source.kind == "files":
        (staging / row.folder).mkdir(parents=True)
        for file in row.files:
            shutil.copy2(source.path / file, staging / row.folder / file)
    else:
        for split in ("train", "test"):
            shutil.copytree(source.path / split, staging / split)
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def _checked_archive(row: Row, path: Path) -> bytes:
    try:
        content = path.read_bytes()
        check(row.downloads[0], content)
    except (OSError, UnusableError) as error:
        raise InputError(
            f"{printable(path)} is not the published archive: {printable(error)}"
        ) from error
    return content
