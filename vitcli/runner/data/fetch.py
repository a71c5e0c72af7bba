"""Named data sets brought into the cache: downloaded, or copied from a place on disk."""

import hashlib
import http.client
import os
import shlex
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

from vitcli.runner.data.catalogue import CATALOGUE, CatalogueRow
from vitcli.runner.data.decode import Listener, decode_named
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
from vitcli.runner.data.folder import list_folder
from vitcli.runner.data.readers import published_md5
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, unwind_on_signals
from vitcli.runner.text import ignore_message, printable

TIMEOUT_SECONDS = 30.0
REPORT_SECONDS = 5.0
CHUNK = 1 << 18
SLACK = 1 << 20
# A URL slower than this after PATIENCE_SECONDS is given up for the next one.
MIN_BYTES_PER_SECOND = 200_000
# The last URL is given up only if it is so slow that the file would take days.
MIN_BYTES_PER_SECOND_OF_LAST = 1_000
PATIENCE_SECONDS = 30.0


class UnusableError(Exception):
    """A URL or a file that is not the published file. The next URL is tried."""


def get_data(
    name: str,
    source: str | None = None,
    *,
    offline: bool = False,
    on_message: Listener = ignore_message,
) -> Source:
    """Download or copy a data set into the cache, decode it, and return its place.

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
        found = find_or_download(name, None, offline, on_message)
        try:
            decode_named(row, found, None, on_message)
            return found
        except InputError as error:
            if is_offline(offline) or not found.path.is_relative_to(download_folder(name)):
                raise
            on_message(str(error))
    elif not source.startswith(("http://", "https://")):
        return _copy(row, Path(os.path.expanduser(source)), on_message)
    elif is_offline(offline):
        raise InputError(f"{printable(source)} cannot be fetched offline; give a PATH")
    found = _download(row, on_message, source)
    decode_named(row, found, None, on_message)
    return found


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
    return _download(CATALOGUE[name], on_message)


def _download(row: CatalogueRow, on_message: Listener, url: str | None = None) -> Source:
    folder = download_folder(row.info.name)
    with explain_write_errors(folder):
        for name in row.published:
            urls = [f"{host}/{name}" for host in row.hosts]
            if url:
                urls = [url.rstrip("/") if row.archive else f"{url.rstrip('/')}/{name}"]
            _download_file(row, name, urls, folder / name, on_message)
        archive = row.archive and Source("archive", folder / row.archive)
        return _prefer(row, archive or Source("files", folder))


def _download_file(
    row: CatalogueRow, name: str, urls: list[str], target: Path, on_message: Listener
) -> None:
    """Write a file from the first URL that delivers the published bytes, and only if complete.

    Raises:
        InputError: All URLs failed. The text gives the reason for each.
    """
    size, reasons = row.published[name], list[str]()
    for url in urls:
        on_message(f"downloading {printable(url)} ({size / 1e6:.1f} MB) to {printable(target)}")
        try:
            content = _receive(url, size, on_message, is_last=len(reasons) == len(urls) - 1)
            check_content(row, name, content)
        except UnusableError as error:
            reasons.append(f"{printable(url)}: {error}")
            on_message(f"failed: {reasons[-1]}")
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        return commit(target, content)
    raise InputError(
        f"{name} could not be downloaded ({'; '.join(reasons)}).\n"
        "Use a copy of your own: vitcli data get NAME --from URL|PATH   "
        "Train on the embedded data set, without a download: vitcli train"
    )


def check_content(row: CatalogueRow, name: str, content: bytes) -> None:
    """Raise UnusableError if the content differs from the published file ``name``."""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != published_md5(row)[name]:
        counts = f"{len(content):,} bytes of {row.published[name]:,}"
        raise UnusableError(f"wrong content ({counts}, MD5 differs)")
    if row.sha256 and hashlib.sha256(content).hexdigest() != row.sha256:
        raise UnusableError("wrong content (SHA-256 differs)")


def _receive(url: str, size: int, on_message: Listener, *, is_last: bool) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "vitcli"})
    content = bytearray()
    min_rate = MIN_BYTES_PER_SECOND_OF_LAST if is_last else MIN_BYTES_PER_SECOND
    started = reported = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            while chunk := response.read1(CHUNK):  # read() would wait for a whole chunk
                content += chunk
                now = time.monotonic()
                if len(content) > size + SLACK:
                    raise UnusableError("the server sends more bytes than the file has")
                rate = len(content) / max(now - started, 1e-6)
                if now - started > PATIENCE_SECONDS and rate < min_rate:
                    raise UnusableError(f"too slow ({rate / 1e3:.1f} kB/s)")
                if now - reported > REPORT_SECONDS:
                    reported = now
                    on_message(
                        f"{len(content) / 1e6:.1f} of {size / 1e6:.1f} MB, {rate / 1e6:.2f} MB/s,"
                        f" {max(0, size - len(content)) / rate:.0f} s left"
                    )
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnusableError(printable(getattr(error, "reason", None) or error)) from error
    return bytes(content)


def _prefer(row: CatalogueRow, new: Source) -> Source:
    """Remove the copies in the cache that would be found before a new one; return the new one."""
    name = row.info.name
    while (found := find_source_in(name, download_folder(name))) is not None and found != new:
        for file in _files_of(row, found):
            file.unlink()
    return new


def _files_of(row: CatalogueRow, source: Source) -> list[Path]:
    """Return the files that belong to a copy. A person's other files beside them do not."""
    if source.kind == "folders":
        return [Path(path) for path in list_folder(source.path, row.info.class_names).paths]
    return [source.path / file for file in row.files] if source.kind == "files" else [source.path]


def _copy(row: CatalogueRow, path: Path, on_message: Listener) -> Source:
    """Check an archive, original files or class folders, and copy them into the cache.

    Folders are decoded before they are copied. The cached arrays become those of the copy.
    """
    name, target = row.info.name, download_folder(row.info.name)
    is_archive = row.archive and path.is_file()
    source = Source("archive", path) if is_archive else find_source_in(name, path)
    if source is None:
        raise missing_data_error(name, path)
    decoded = None
    if source.kind == "archive":
        with explain_write_errors(target):
            copy = _copy_archive(row, source.path, target)
    else:
        decoded = decode_named(row, source, None, on_message)
        on_message(f"copying {printable(source.path)} to {printable(target)}")
        with explain_write_errors(target):
            copy = _copy_folder(row, source, target)
    decode_named(row, copy, None, on_message, decoded=decoded)
    return copy


def _copy_archive(row: CatalogueRow, path: Path, target: Path) -> Source:
    name = row.archive or ""
    try:
        content = path.read_bytes()
        check_content(row, name, content)
    except (OSError, UnusableError) as error:
        raise InputError(
            f"{printable(path)} is not the published archive: {printable(error)}"
        ) from error
    target.mkdir(parents=True, exist_ok=True)
    commit(target / name, content)
    return _prefer(row, Source("archive", target / name))


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
        for file in old - {target / copy for copy in copies}:
            file.unlink()
        return _prefer(row, new)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
