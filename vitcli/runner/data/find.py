"""Where a named data set lies on this machine, and what to type when it does not."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from vitcli.runner.data.catalogue import CATALOGUE, Row
from vitcli.runner.errors import InputError, ResourceError
from vitcli.runner.text import printable

DATA_VARIABLE = "VITCLI_DATA"
CACHE_VARIABLE = "VITCLI_CACHE"
OFFLINE_VARIABLE = "VITCLI_OFFLINE"


@dataclass(frozen=True)
class Source:
    """A data set on disk: its archive, a folder with its original files, or class folders."""

    kind: Literal["archive", "files", "folders"]
    path: Path


def cache_root() -> Path:
    """The folder for downloads and decoded arrays; ``VITCLI_CACHE`` overrides the system's."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return (
        Path(os.path.expanduser(chosen)) if chosen else Path(platformdirs.user_cache_dir("vitcli"))
    )


def download_folder(name: str) -> Path:
    return cache_root() / "downloads" / name


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a full or forbidden disk into the error that says where to write instead."""
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"{printable(folder)} cannot be written: {printable(error.strerror or error)};"
            f" set {CACHE_VARIABLE} to a folder with room"
        ) from error


def is_offline(offline: bool) -> bool:
    return offline or os.environ.get(OFFLINE_VARIABLE, "").lower() not in ("", "0", "false", "no")


def find_source(name: str, data_dir: Path | None) -> Source | None:
    """Look in ``data_dir`` alone, or else in ``VITCLI_DATA`` and then in the cache."""
    return next(filter(None, (find_in(name, place) for place in places(name, data_dir))), None)


def places(name: str, data_dir: Path | None) -> list[Path]:
    if data_dir is not None:
        return [data_dir]
    chosen = os.environ.get(DATA_VARIABLE)
    return [*([Path(os.path.expanduser(chosen))] if chosen else []), download_folder(name)]


def find_in(name: str, place: Path) -> Source | None:
    """A data set in ``place`` or in a folder of its name there."""
    row = CATALOGUE[name]
    for base in (place, place / name):
        for folder in (base / row.folder, base):
            if all((folder / file).is_file() for file in row.files):
                return Source("files", folder)
        if row.archive and (base / row.archive).is_file():
            return Source("archive", base / row.archive)
        if row.class_folders and _has_class_folders(row, base):
            return Source("folders", base)
    return None


def _has_class_folders(row: Row, base: Path) -> bool:
    names = row.info.class_names
    return all((base / split / name).is_dir() for split in ("train", "test") for name in names)


def missing(name: str, data_dir: Path | None) -> InputError:
    """The error that says where was looked, for what, and what to type."""
    row = CATALOGUE[name]
    wanted = [f"{row.folder}/" if row.archive else ", ".join(row.files)]
    wanted += [row.archive] if row.archive else []
    wanted += ["{train,test}/<class>/*.png"] if row.class_folders else []
    looked = " or ".join(printable(place) for place in places(name, data_dir))
    megabytes = row.download_bytes / 1e6
    return InputError(
        f"{name} is not in {looked} (looked for {' or '.join(wanted)}).\n"
        f"Download it ({megabytes:.0f} MB): vitcli data get {name}   "
        f"Use a copy: vitcli data get {name} --from URL|PATH, or --data-dir FOLDER   "
        "Train without any download, on the embedded shapes: vitcli train"
    )
