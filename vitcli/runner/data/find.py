"""Search for a named data set on this machine."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from vitcli.core.spec import DATA_SETS
from vitcli.runner.data.catalogue import CATALOGUE, folder_path
from vitcli.runner.errors import ConfigError, InputError, ResourceError
from vitcli.runner.text import did_you_mean, printable, quoted

DATA_VARIABLE = "VITCLI_DATA"
CACHE_VARIABLE = "VITCLI_CACHE"
OFFLINE_VARIABLE = "VITCLI_OFFLINE"


@dataclass(frozen=True)
class Source:
    """A data set on disk: its archive, a folder with its original files, or class folders."""

    kind: Literal["archive", "files", "folders"]
    path: Path


def cache_root() -> Path:
    """Return the folder for downloads and decoded arrays: ``VITCLI_CACHE`` or the default.

    Raises:
        ResourceError: The variable is not set, and the user has no home folder.
    """
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
    """Return the folder in the cache for the downloads of a data set."""
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
    """Return whether downloads are forbidden, by the argument or by ``VITCLI_OFFLINE``."""
    return offline or os.environ.get(OFFLINE_VARIABLE, "").lower() not in ("", "0", "false", "no")


def check_name(name: str, where: str = "") -> None:
    """Refuse a name that is neither a named data set nor ``imagefolder:PATH``.

    Raises:
        ConfigError: The text suggests ``imagefolder:`` if there is a folder of this name.
    """
    if name in DATA_SETS or folder_path(name):
        return
    if name and Path(os.path.expanduser(name)).is_dir():
        hint = f"; did you mean {quoted(f'imagefolder:{name}')}?"
    else:
        hint = did_you_mean(name, DATA_SETS) or f"; there are {', '.join(DATA_SETS)}"
        hint += "" if hint.endswith("?") else ", imagefolder:PATH"
    raise ConfigError(f"{where}unknown data set {printable(name)!r}{hint}")


def refuse_unused_folder(
    name: str, data_dir: Path | None, *, may_choose: bool = False, may_move: bool = False
) -> None:
    """Refuse ``data_dir`` for a data set that is not searched in it.

    Args:
        name: The name of the data set.
        data_dir: The folder of ``--data-dir``.
        may_choose: Whether the command has ``--data``.
        may_move: Whether the name is that of a run, whose pictures may have moved to ``data_dir``.

    Raises:
        ConfigError: The folder would be ignored.
    """
    if data_dir is None or name in CATALOGUE or (may_move and folder_path(name)):
        return
    if folder_path(name):
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
        for folder in (base / row.folder, base):
            if all((folder / file).is_file() for file in row.files):
                return Source("files", folder)
        if row.archive and (base / row.archive).is_file():
            return Source("archive", base / row.archive)
        splits, classes = (base / "train", base / "test"), row.info.class_names
        if row.class_folders and all((s / each).is_dir() for s in splits for each in classes):
            return Source("folders", base)
    return None


def missing_data_error(name: str, data_dir: Path | None) -> InputError:
    """Return the error for a missing data set: searched folders, wanted files, what to type."""
    row = CATALOGUE[name]
    wanted = [f"{row.folder}/" if row.archive else ", ".join(row.files)]
    wanted += [row.archive] if row.archive else []
    wanted += ["{train,test}/<class>/*.png"] if row.class_folders else []
    looked = " or ".join(printable(place) for place in _search_folders(name, data_dir))
    return InputError(
        f"{name} is not in {looked} (looked for {' or '.join(wanted)}).\n"
        f"Download it ({row.download_bytes / 1e6:.0f} MB): vitcli data get {name}   "
        f"Use a copy: vitcli data get {name} --from URL|PATH, or --data-dir FOLDER   "
        "Train on the embedded data set, without a download: vitcli train"
    )
