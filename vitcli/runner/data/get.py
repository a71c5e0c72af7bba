"""Download or copy of named data sets into the cache, and their status."""

import os
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.spec import GENERATED
from vitcli.runner.data.cache import sidecar_path
from vitcli.runner.data.catalogue import CATALOGUE, CatalogueRow, folder_path
from vitcli.runner.data.decode import Listener, array_file, decode_named, folder_array_file
from vitcli.runner.data.download import UnusableError, check_content, download
from vitcli.runner.data.find import (
    Source,
    check_name,
    download_folder,
    explain_write_errors,
    find_source,
    find_source_in,
    is_offline,
    missing_data_error,
)
from vitcli.runner.data.image_folder import list_folder
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, unwind_on_signals
from vitcli.runner.text import ignore_message, printable


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """The place of a data set on disk; ``place`` is None if it is embedded or missing.

    ``kind`` is embedded, archive, files, folders or missing. ``decoded`` lists its cached arrays.
    """

    name: str
    place: Path | None
    kind: str
    decoded: tuple[Path, ...]


def data_status(name: str, data_dir: Path | None = None) -> DataStatus:
    """Return where a data set is and which decoded copies the cache has. Reads no image.

    Raises:
        ConfigError: There is no data set of this name.
    """
    kind, place = _locate(name, data_dir)
    path = folder_path(name)
    first = folder_array_file(path, None) if path else array_file(name, None)
    files = sorted(first.parent.glob(first.name.replace("-native", "-*")))
    decoded = tuple(path for path in files if sidecar_path(path).is_file())
    return DataStatus(name=name, place=place, kind=kind, decoded=decoded)


def _locate(name: str, data_dir: Path | None) -> tuple[str, Path | None]:
    if path := folder_path(name):
        return ("folders", path) if path.is_dir() else ("missing", None)
    check_name(name)
    if name in GENERATED:
        return "embedded", None
    source = find_source(name, data_dir)
    return (source.kind, source.path) if source else ("missing", None)


def get_data(
    name: str,
    source: str | None = None,
    *,
    offline: bool = False,
    on_message: Listener = ignore_message,
) -> DataStatus:
    """Download or copy a data set into the cache, and decode it.

    Args:
        name: The name of the data set.
        source: The URL of the archive or of the folder with the files, or a path on disk. By
            default the published URLs.
        offline: Never open a connection.
        on_message: Receives messages for the user.

    Raises:
        InputError: The data set cannot be fetched, or differs from the published one.
        ConfigError: There is no data set of this name, or it needs no download.
    """
    check_name(name)
    if name not in CATALOGUE:
        raise ConfigError(
            f"{name} needs no download; use it: vitcli train --data {shlex.quote(name)}"
        )
    row = CATALOGUE[name]
    if source is None:
        _refresh(row, offline, on_message)
    elif source.startswith(("http://", "https://")):
        if is_offline(offline):
            raise InputError(f"{printable(source)} cannot be fetched offline; give a PATH")
        decode_named(row, _fetch(name, on_message, source.rstrip("/")), None, on_message)
    else:
        _copy(row, Path(os.path.expanduser(source)), on_message)
    return data_status(name)


def _refresh(row: CatalogueRow, offline: bool, on_message: Listener) -> None:
    """Decode the data set on disk, or download it. Replace a damaged copy in the cache."""
    name = row.info.name
    found = find_or_download(name, None, offline, on_message)
    try:
        decode_named(row, found, None, on_message)
    except InputError as error:
        if is_offline(offline) or not found.path.is_relative_to(download_folder(name)):
            raise
        on_message(str(error))
        decode_named(row, _fetch(name, on_message), None, on_message)


def find_or_download(
    name: str, data_dir: Path | None, offline: bool, on_message: Listener
) -> Source:
    """Find a named data set on disk, or download it if that is allowed.

    Raises:
        InputError: The data set is missing. The text says what to type.
    """
    if source := find_source(name, data_dir):
        return source
    if data_dir is not None or is_offline(offline):
        raise missing_data_error(name, data_dir)
    return _fetch(name, on_message)


def _fetch(name: str, on_message: Listener, url: str | None = None) -> Source:
    row, folder = CATALOGUE[name], download_folder(name)
    with explain_write_errors(folder):
        for file in row.downloads:
            urls = file.urls
            if url:
                urls = (url,) if row.archive else (f"{url}/{file.name}",)
            download(file, folder, on_message, urls)
        return _prefer(
            row,
            Source("archive", folder / row.archive) if row.archive else Source("files", folder),
        )


def _prefer(row: CatalogueRow, new: Source) -> Source:
    """Remove the copies in the cache that would be found before a new one; return the new one."""
    name, folder = row.info.name, download_folder(row.info.name)
    while (found := find_source_in(name, folder)) is not None and found != new:
        _remove(_files_of(row, found))
    return new


def _files_of(row: CatalogueRow, source: Source) -> list[Path]:
    """Return the files that belong to a copy. A person's other files beside them do not."""
    if source.kind == "archive":
        return [source.path]
    if source.kind == "files":
        return [source.path / file for file in row.files]
    return [Path(path) for path in list_folder(source.path, row.info.class_names).files.paths]


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()


def _copy(row: CatalogueRow, path: Path, on_message: Listener) -> None:
    """Check an archive, original files or class folders, and copy them into the cache.

    Folders are decoded before they are copied. The cached arrays become those of the copy.
    """
    name = row.info.name
    source = (
        Source("archive", path) if path.is_file() and row.archive else find_source_in(name, path)
    )
    if source is None:
        raise missing_data_error(name, path)
    target = download_folder(name)
    if source.kind == "archive":
        content = _checked_archive(row, source.path)
        with explain_write_errors(target):
            target.mkdir(parents=True, exist_ok=True)
            commit(target / row.downloads[0].name, content)
            source = _prefer(row, Source("archive", target / row.downloads[0].name))
    decoded = decode_named(row, source, None, on_message)
    if source.kind != "archive":
        on_message(f"copying {printable(source.path)} to {printable(target)}")
        with explain_write_errors(target):
            copy = _copy_folder(row, source, target)
        decode_named(row, copy, None, on_message, decoded=decoded)


@unwind_on_signals()
def _copy_folder(row: CatalogueRow, source: Source, target: Path) -> Source:
    """Copy to a temporary folder beside the target, then move the files to the target.

    Each old file stays until the new copy is whole, or until the new file of the same name takes
    its place. Other files in the target stay.
    """
    staging = target.parent / f".{target.name}.new"
    inner = Path(row.folder if source.kind == "files" else "")
    new = Source(source.kind, target / inner)
    shutil.rmtree(staging, ignore_errors=True)
    try:
        copies = [inner / file.relative_to(source.path) for file in _files_of(row, source)]
        for copy in copies:
            (staging / copy).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source.path / copy.relative_to(inner), staging / copy)
        is_replaced = new.kind == "folders" and find_source_in(row.info.name, target) == new
        old = set(_files_of(row, new)) if is_replaced else set()
        for copy in copies:
            (target / copy).parent.mkdir(parents=True, exist_ok=True)
            (staging / copy).replace(target / copy)
        _remove(old - {target / copy for copy in copies})
        return _prefer(row, new)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _checked_archive(row: CatalogueRow, path: Path) -> bytes:
    try:
        content = path.read_bytes()
        check_content(row.downloads[0], content)
    except (OSError, UnusableError) as error:
        raise InputError(
            f"{printable(path)} is not the published archive: {printable(error)}"
        ) from error
    return content
