"""Search for a named data set on this machine, and its download."""

import contextlib
import http.client
import os
import socket
import ssl
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from vitcli.core.spec import DATA_READERS, DATA_SETS
from vitcli.core.spec.data import list_own, split_name
from vitcli.core.spec.own import NEEDS_CODE
from vitcli.plugin import missing_for
from vitcli.runner.data.catalogue import CATALOGUE, CatalogueRow
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.text import Listener, did_you_mean, printable, quoted

DATA_VARIABLE = "VITCLI_DATA"
CACHE_VARIABLE = "VITCLI_CACHE"
OFFLINE_VARIABLE = "VITCLI_OFFLINE"
TIMEOUT_SECONDS = 30.0
NETWORK_ERRORS = (
    *(urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError),
    *(ssl.SSLError, ValueError, RuntimeError),
)
"""What torchvision raises for a URL that fails; other errors are those of the disk."""


@dataclass(frozen=True)
class Source:
    """A data set on disk: its archive, a folder with its original files, or class folders."""

    kind: Literal["archive", "files", "folders"]
    path: Path


def cache_root() -> Path:
    """Return the folder for downloads and decoded arrays: ``VITCLI_CACHE`` or the default."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(os.path.expanduser(chosen))
    with contextlib.suppress(RuntimeError):
        place = Path(platformdirs.user_cache_dir("vitcli"))
        if place.is_absolute():  # some versions leave '~' as it is
            return place
    raise ResourceError(
        f"the cache has no place, because you have no home folder; set {CACHE_VARIABLE} to a folder"
        " that you can write to"
    )


def download_folder(name: str) -> Path:
    return cache_root() / "downloads" / name


@contextlib.contextmanager
def explain_write_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a ResourceError that names the variable to set."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{printable(folder)} cannot be written: {printable(error.strerror or error)};"
            f" set {CACHE_VARIABLE} to a folder with free space"
        ) from error


def is_offline(offline: bool) -> bool:
    return offline or is_switched_on(OFFLINE_VARIABLE)


def is_switched_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() not in ("", "0", "false", "no")


def own_path(name: str, data_dir: Path | None = None) -> Path | None:
    if (named := split_name(name)) is None:
        return None
    row, text = named
    path = Path(os.path.expanduser(text)) if row.is_path else Path(text)
    if data_dir is None or not row.is_path:
        return path
    return data_dir / path.name if (data_dir / path.name).is_file() else data_dir


def check_name(name: str, where: str = "", *, takes_code: bool = False) -> None:
    """Refuse a name that is neither a named data set nor one of the user's own pictures.

    ``where`` is what sets the field of an experiment, if one is set. Then the command takes own
    code, as it does with ``takes_code``.
    """
    if name in DATA_SETS or own_path(name):
        return
    if missing := missing_for(DATA_READERS.field, name):
        raise ConfigError(f"{where}{printable(name)}: {missing}")
    path = Path(os.path.expanduser(name))
    prefix = "imagefolder" if path.is_dir() else path.suffix[1:]
    if name and path.exists() and prefix in DATA_READERS:
        hint = f"; did you mean {quoted(f'{prefix}:{name}')}?"
    else:
        hint = did_you_mean(name, DATA_SETS) or f"; there are {', '.join(DATA_SETS)}"
        code = NEEDS_CODE if takes_code or where else ""
        hint += "" if hint.endswith("?") else f", {list_own()}{code}"
    raise ConfigError(f"{where}unknown data set {printable(name)!r}{hint}")


def refuse_unused_folder(
    name: str, data_dir: Path | None, *, may_choose: bool = False, may_move: bool = False
) -> None:
    if data_dir is None or name in CATALOGUE or (may_move and own_path(name)):
        return
    if own_path(name):
        raise ConfigError(f"--data-dir: {name} names its folder itself; leave out --data-dir")
    meant = f"did you mean --data {quoted(f'imagefolder:{data_dir}')}?"
    hint = meant if may_choose else "leave out --data-dir"
    raise ConfigError(f"--data-dir: {name} is generated; {hint}")


def find_source(name: str, data_dir: Path | None) -> Source | None:
    """Search in ``data_dir`` only; if None, search in ``VITCLI_DATA`` and then in the cache."""
    places = _search_folders(name, data_dir)
    return next(filter(None, (find_source_in(name, place) for place in places)), None)


def _search_folders(name: str, data_dir: Path | None) -> list[Path]:
    if data_dir is not None:
        return [data_dir]
    chosen = os.environ.get(DATA_VARIABLE)
    return [*([Path(os.path.expanduser(chosen))] if chosen else []), download_folder(name)]


def find_source_in(name: str, place: Path) -> Source | None:
    """Search for a data set in ``place`` and in the subfolder of its name."""
    row = CATALOGUE[name]
    for base in (place, place / name):
        if row.archive and (base / row.archive).is_file():
            return Source("archive", base / row.archive)
        for folder in (base, base / row.folder):  # a download comes first
            if all((folder / file).is_file() for file in row.files):
                return Source("files", folder)
        splits, classes = (base / "train", base / "test"), row.info.class_names
        if row.class_folders and all((s / each).is_dir() for s in splits for each in classes):
            return Source("folders", base)
    return None


def get_command(name: str, offline: bool = False) -> str:
    """Return the command that gets a data set: from the network, or offline from a folder."""
    return f"vitcli data get {name}{' --from FOLDER' if is_offline(offline) else ''}"


def missing_data_error(name: str, data_dir: Path | None, offline: bool) -> InputError:
    row, get = CATALOGUE[name], get_command(name, offline)
    download = f"Download it ({row.download_bytes / 1e6:.0f} MB): {get}   "
    download, copy = ("", get) if is_offline(offline) else (download, f"{get} --from URL|PATH")
    wanted = [f"{row.folder}/" if row.archive else ", ".join(row.files)]
    wanted += [row.archive] if row.archive else []
    wanted += ["{train,test}/<class>/*.png"] if row.class_folders else []
    looked = " or ".join(printable(place) for place in _search_folders(name, data_dir))
    return InputError(
        f"{name} is not in {looked} (looked for {' or '.join(wanted)}).\n"
        f"{download}Use a copy: {copy}, or --data-dir FOLDER   "
        "Train on the embedded data set, without a download: vitcli train"
    )


def find_or_download(
    name: str, data_dir: Path | None, offline: bool, on_message: Listener
) -> Source:
    if source := find_source(name, data_dir):
        return source
    if data_dir is not None or is_offline(offline):
        raise missing_data_error(name, data_dir, offline)
    return download(CATALOGUE[name], on_message)


def download(row: CatalogueRow, on_message: Listener, url: str | None = None) -> Source:
    """Download a data set into the cache: from ``url``, or from the hosts that publish it."""
    folder, before = download_folder(row.info.name), socket.getdefaulttimeout()
    socket.setdefaulttimeout(TIMEOUT_SECONDS)  # torchvision sets none, and a host may be silent
    try:
        with explain_write_errors(folder):
            for name in row.published:
                urls = [f"{host}/{name}" for host in row.hosts]
                if url:
                    urls = [url.rstrip("/") if row.archive else f"{url.rstrip('/')}/{name}"]
                _download_file(row, name, urls, folder / name, on_message)
            archive = row.archive and Source("archive", folder / row.archive)
            return archive or Source("files", folder)
    finally:
        socket.setdefaulttimeout(before)


def _download_file(
    row: CatalogueRow, name: str, urls: list[str], target: Path, on_message: Listener
) -> None:
    """Write a file from the first URL that delivers the published bytes, and only if complete."""
    from torchvision.datasets.utils import download_url

    size, reasons = row.published[name], list[str]()
    part = target.with_name(f".{name}.part")
    for url in urls:
        on_message(f"downloading {printable(url)} ({size / 1e6:.1f} MB) to {printable(target)}")
        try:
            download_url(url, str(target.parent), part.name, row.md5[name])
        except NETWORK_ERRORS as error:
            part.unlink(missing_ok=True)
            is_wrong = type(error) is RuntimeError  # of torchvision, without a reason
            reason = "wrong content (MD5 differs)" if is_wrong else printable(error)
            reasons.append(f"{printable(url)}: {reason}")
            on_message(f"failed: {reasons[-1]}")
            continue
        part.replace(target)
        return
    raise InputError(
        f"{name} could not be downloaded ({'; '.join(reasons)}).\n"
        f"Use a copy of your own: vitcli data get {row.info.name} --from URL|PATH   "
        "Train on the embedded data set, without a download: vitcli train"
    )


def original_files(row: CatalogueRow, source: Source) -> list[Path]:
    return [source.path / file for file in row.files] if source.kind == "files" else [source.path]
