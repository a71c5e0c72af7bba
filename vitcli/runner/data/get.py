"""`vitcli data get`: a named data set downloaded, or copied from a place on disk, and decoded."""

import os
import shlex
import shutil
from pathlib import Path

from vitcli.core.spec.data import split_name
from vitcli.plugin import load_target
from vitcli.runner.data.catalogue import CATALOGUE, CatalogueRow
from vitcli.runner.data.find import (
    Source,
    check_name,
    download,
    download_folder,
    explain_write_errors,
    find_or_download,
    find_source_in,
    is_offline,
    missing_data_error,
    original_files,
)
from vitcli.runner.data.folder import list_folder
from vitcli.runner.data.readers import decode_named
from vitcli.runner.errors import ConfigError, InputError, require_packages
from vitcli.runner.files import commit
from vitcli.runner.text import Listener, ignore_message, printable


def get_data(
    name: str,
    source: str | None = None,
    *,
    offline: bool = False,
    on_message: Listener = ignore_message,
) -> Source:
    check_name(name)
    if (named := split_name(name)) and named[0].fetch:
        if source is not None:
            raise ConfigError(f"--from: {printable(name)} names its place itself; leave out --from")
        require_packages(f"{name.partition(':')[0]}:", named[0].packages, "hub")
        folder = load_target(named[0].fetch)(named[1], offline, on_message)
        return Source("files", folder.root)
    if name not in CATALOGUE:
        raise ConfigError(
            f"{name} needs no download; use it: vitcli train --data {shlex.quote(name)}"
        )
    row = CATALOGUE[name]
    if source is None:
        stored = find_or_download(name, None, offline, on_message)
        try:
            decode_named(row, stored, None, on_message)
            return stored
        except InputError as error:
            if is_offline(offline) or not stored.path.is_relative_to(download_folder(name)):
                raise
            on_message(str(error))
    elif not source.startswith(("http://", "https://")):
        return _copy(row, Path(os.path.expanduser(source)), offline, on_message)
    elif is_offline(offline):
        raise InputError(f"{printable(source)} cannot be fetched offline; type --from FOLDER")
    stored = download(row, on_message, source)
    decode_named(row, stored, None, on_message)
    return stored


def _copy(row: CatalogueRow, path: Path, offline: bool, on_message: Listener) -> Source:
    """Decode and copy a source into the cache; the cached arrays become those of the copy."""
    name, target = row.info.name, download_folder(row.info.name)
    is_archive = row.archive and path.is_file()
    source = Source("archive", path) if is_archive else find_source_in(name, path)
    if source is None:
        raise missing_data_error(name, path, offline)
    decoded = decode_named(row, source, None, on_message)
    on_message(f"copying {printable(source.path)} to {printable(target)}")
    with explain_write_errors(target):
        if is_archive:
            copy = Source("archive", target / str(row.archive))
            target.mkdir(parents=True, exist_ok=True)
            commit(copy.path, source.path.read_bytes())
        else:
            copy = _copy_folder(row, source, target)
    decode_named(row, copy, None, on_message, decoded=decoded)
    return copy


def _copy_folder(row: CatalogueRow, source: Source, target: Path) -> Source:
    """Copy to a temporary folder, and replace the data set in the target when that is whole."""
    files, inner = original_files(row, source), Path(row.folder)
    if source.kind == "folders":
        files = [Path(path) for path in list_folder(source.path, row.info.class_names).paths]
        inner = Path()
    staging = target.with_name(f".{target.name}.new")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        for file in files:
            copy = staging / inner / file.relative_to(source.path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy)
        if target.is_symlink():
            target.unlink()
        target.mkdir(exist_ok=True)
        ours = {*Path(row.folder).parts[:1], *row.published, *row.files, "train", "test"}
        for path in (target / name for name in ours):  # other files are a person's
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
        for entry in staging.iterdir():
            entry.replace(target / entry.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Source(source.kind, target / inner)
