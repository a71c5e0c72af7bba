"""`vitcli data get`: a named data set downloaded, or copied from a place on disk, and decoded."""

import os
import shlex
from pathlib import Path

from vitcli.core.spec.readers import split_name
from vitcli.core.spec.rows import load_target
from vitcli.runner.data.catalogue import CATALOGUE, CatalogueRow
from vitcli.runner.data.find import (
    Listener,
    Source,
    check_name,
    download,
    download_folder,
    explain_write_errors,
    find_or_download,
    find_source_in,
    is_offline,
    missing_data_error,
)
from vitcli.runner.data.load import decode_named
from vitcli.runner.data.own import require_packages
from vitcli.runner.data.readers import published_files
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit
from vitcli.runner.text import ignore_message, printable


def get_data(
    name: str,
    source: str | None = None,
    *,
    offline: bool = False,
    on_message: Listener = ignore_message,
) -> Source:
    """Download or copy a data set into the cache, decode it, and return its place."""
    check_name(name)
    if (own := split_name(name)) and own[0].fetch:
        if source is not None:
            raise ConfigError(f"--from: {printable(name)} names its place itself; leave out --from")
        require_packages(name)
        folder = load_target(own[0].fetch)(own[1], offline, on_message)
        return Source("files", folder.root)
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
    found = download(row, on_message, source)
    decode_named(row, found, None, on_message)
    return found


def _copy(row: CatalogueRow, path: Path, on_message: Listener) -> Source:
    """Copy the published files of an archive or a folder into the cache."""
    target = download_folder(row.info.name) / row.folder
    is_archive = row.archive and path.is_file()
    source = Source("archive", path) if is_archive else find_source_in(row.info.name, path)
    if source is None:
        raise missing_data_error(row.info.name, path)
    if source.kind == "folders":
        place = shlex.quote(str(path))
        raise ConfigError(f"--from: pictures are read where they are: --data-dir {place}")
    on_message(f"copying {printable(source.path)} to {printable(target)}")
    with explain_write_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        for name, content in published_files(row, source):
            commit(target / name, content)
    copy = Source("files", target)
    decode_named(row, copy, None, on_message)
    return copy
