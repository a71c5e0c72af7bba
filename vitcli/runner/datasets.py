"""Data sets by name: find or download, verify, decode, put in order, cache.

``load_data`` is what training needs, ``describe_data`` what can be said without reading an image,
``data_status`` and ``get_data`` are for ``vitcli data``.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitcli.core.data.source import DataSet, Images, channel_stats
from vitcli.core.spec import DataSpec
from vitcli.runner.data.arrays import (
    canonical,
    data_hash,
    hold_out,
    require_memory,
    resized,
    split_by_content,
)
from vitcli.runner.data.cache import FORMAT, Decoded, cached, sidecar
from vitcli.runner.data.catalogue import CATALOGUE, DataInfo, Row
from vitcli.runner.data.download import Unusable, check, download
from vitcli.runner.data.find import (
    Source,
    cache_root,
    download_folder,
    find_in,
    find_source,
    is_offline,
    missing,
)
from vitcli.runner.data.image_folder import (
    IN_CHANS,
    Folder,
    chosen_size,
    list_folder,
    read_labelled,
)
from vitcli.runner.data.pictures import shown
from vitcli.runner.data.readers import read_original
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit

Listener = Callable[[str], None]
Size = tuple[int, int]


def silent(_: str) -> None:
    """The default listener."""


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """Where a data set is: ``place`` is None where it is nowhere; ``kind`` says in what form."""

    name: str
    place: Path | None
    kind: str
    decoded: tuple[Path, ...]


def load_data(
    spec: DataSpec,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    on_message: Listener = silent,
) -> DataSet:
    """Read a data set into memory, on the CPU, in canonical order.

    ``data_dir`` is the only place searched where it is given; else ``VITCLI_DATA``, then the cache,
    then the network unless ``offline`` or ``VITCLI_OFFLINE`` is set. ``mean`` and ``std`` are those
    of the whole training set, the part held out by ``val_split`` included.

    Raises:
        InputError: The data set is missing, damaged, or not what it says it is.
        ConfigError: The spec does not fit the data set.
        ResourceError: It does not fit in memory.
    """
    if spec.name == "shapes":
        decoded = _shapes(spec.resize, on_message)
    elif path := _folder_path(spec.name):
        decoded = _image_folder(path, spec.resize, on_message)
    else:
        source = _obtain(spec.name, data_dir, offline, on_message)
        decoded = _named(CATALOGUE[spec.name], source, spec.resize, on_message)
    return _finish(spec, decoded)


def _folder_path(name: str) -> Path | None:
    path = name.partition("imagefolder:")[2]
    return Path(path).expanduser() if path else None


def _finish(spec: DataSpec, decoded: Decoded) -> DataSet:
    names = spec.class_names or decoded.class_names
    if len(names) != len(decoded.class_names):
        raise ConfigError(
            f"data.class_names has {len(names)} names, {spec.name} {len(decoded.class_names)} classes"
        )
    mean, std = spec.mean or decoded.mean, spec.std or decoded.std
    if {len(mean), len(std)} != {len(decoded.mean)}:
        raise ConfigError(f"data.mean and data.std need {len(decoded.mean)} values for {spec.name}")
    train, val = decoded.train, None
    if spec.val_split:
        train, val = hold_out(train, spec.val_split)
    return DataSet(
        name=spec.name,
        class_names=names,
        train=train,
        test=decoded.test,
        val=val,
        mean=mean,
        std=std,
        data_hash=decoded.data_hash,
    )


# Reading


def _decoded(class_names: tuple[str, ...], train: Images, test: Images) -> Decoded:
    mean, std = channel_stats(train.pixels)
    return Decoded(
        class_names=class_names,
        train=train,
        test=test,
        mean=mean,
        std=std,
        data_hash=data_hash((train, test)),
    )


def _array_file(name: str, size: Size | None) -> Path:
    suffix = f"{size[0]}x{size[1]}" if size else "native"
    return cache_root() / "arrays" / f"{name}-{suffix}.safetensors"


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()


def _shapes(size: Size | None, on_message: Listener) -> Decoded:
    from vitcli.core.data import shapes

    def build() -> Decoded:
        train, test = shapes.shapes()
        splits = [resized(canonical(images), size) for images in (train, test)]
        return _decoded(tuple(shapes.CLASS_NAMES), *splits)

    return build()


def _named(row: Row, source: Source, size: Size | None, on_message: Listener) -> Decoded:
    info = row.info
    folder = list_folder(source.path, info.class_names) if source.kind == "folders" else None

    def build() -> Decoded:
        on_message(f"reading {info.name} from {shown(source.path)}")
        require_memory(info.num_train + info.num_test, info.in_chans, size or info.img_size)
        if folder:
            train, test = _class_folders(row, folder, on_message)
        else:
            train, test = read_original(row, source, _scratch())
        splits = [resized(canonical(images), size) for images in (train, test)]
        return _decoded(info.class_names, *splits)

    key = _key(folder.stamp if folder else _file_stamp(row, source))
    return cached(_array_file(info.name, size), key, build, on_message)


def _class_folders(row: Row, folder: Folder, on_message: Listener) -> tuple[Images, Images]:
    info, test = row.info, folder.test
    assert test is not None
    if (len(folder.train), len(test)) != (info.num_train, info.num_test):
        on_message(
            f"note: {shown(folder.root)} has {len(folder.train):,} + {len(test):,} pictures,"
            f" {info.name} has {info.num_train:,} + {info.num_test:,}"
        )
    train = read_labelled(folder.train, info.img_size, info.in_chans, on_message)
    return train, read_labelled(test, info.img_size, info.in_chans, on_message)


def _file_stamp(row: Row, source: Source) -> list[tuple[str, int, int]]:
    files = [source.path]
    if source.kind == "files":
        files = [source.path / name for name in row.files]
    return [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]


def _scratch() -> Path | None:
    """A private folder beside the cache, where there is room; the system's where there is none."""
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError:
        return None
    return root


def _image_folder(path: Path, resize: Size | None, on_message: Listener) -> Decoded:
    folder = list_folder(path)
    for note in folder.notes:
        on_message(note)

    def build() -> Decoded:
        size, note = chosen_size(folder, resize)
        if note:
            on_message(note)
        count = len(folder.train) + len(folder.test or ())
        on_message(f"reading {count:,} pictures from {shown(path)}")
        require_memory(count, IN_CHANS, size)
        train = canonical(read_labelled(folder.train, size, IN_CHANS, on_message))
        if folder.test is None:
            train, test = split_by_content(train)
            on_message(_split_note(folder, train, test))
        else:
            test = canonical(read_labelled(folder.test, size, IN_CHANS, on_message))
        return _decoded(folder.class_names, train, test)

    where = hashlib.sha256(str(path.resolve()).encode(errors="surrogateescape")).hexdigest()[:12]
    file = _array_file(f"imagefolder-{where}", resize)
    return cached(file, _key(folder.stamp, folder.class_names), build, on_message)


def _split_note(folder: Folder, train: Images, test: Images) -> str:
    if not len(test):
        raise InputError(f"{shown(folder.root)}: too few pictures to hold out a test set")
    return (
        f"{shown(folder.root)} has no test or val folder: {len(test):,} of its"
        f" {len(train) + len(test):,} pictures are held out for testing, chosen by their content"
    )


# Knowing


def describe_data(name: str, *, resize: Size | None = None) -> DataInfo:
    """What is known of a data set without reading its images; a folder's are counted.

    Where a folder has no test set, the count of test images is that of the coming split, give or
    take the rounding per class and duplicates. Its image size comes from the pictures' headers.
    """
    if name == "shapes":
        from vitcli.core.data import shapes

        train, test = shapes.shapes()
        height, width = resize or train.pixels.shape[2:]
        return DataInfo(
            name=name,
            img_size=(height, width),
            in_chans=train.pixels.shape[1],
            class_names=tuple(shapes.CLASS_NAMES),
            num_train=len(train),
            num_test=len(test),
        )
    if path := _folder_path(name):
        return _describe_folder(name, path, resize)
    info = CATALOGUE[name].info
    return DataInfo(**{**vars(info), "img_size": resize or info.img_size})


def _describe_folder(name: str, path: Path, resize: Size | None) -> DataInfo:
    folder = list_folder(path)
    held_out = round(0.2 * len(folder.train)) if folder.test is None else 0
    return DataInfo(
        name=name,
        img_size=chosen_size(folder, resize)[0],
        in_chans=IN_CHANS,
        class_names=folder.class_names,
        num_train=len(folder.train) - held_out,
        num_test=held_out if folder.test is None else len(folder.test),
    )


def data_status(name: str, data_dir: Path | None = None) -> DataStatus:
    """Where a data set is found and which decoded copies the cache has; reads no image."""
    source = find_source(name, data_dir) if name in CATALOGUE else None
    place, kind = (source.path, source.kind) if source else (None, "missing")
    if name == "shapes":
        kind = "embedded"
    elif path := _folder_path(name):
        place, kind = path, "folders" if path.is_dir() else "missing"
    pattern = f"{name}-*.safetensors"
    arrays = cache_root() / "arrays"
    decoded = tuple(sorted(arrays.glob(pattern))) if name in CATALOGUE else ()
    return DataStatus(
        name=name,
        place=place,
        kind=kind,
        decoded=tuple(path for path in decoded if sidecar(path).is_file()),
    )


# Getting


def _obtain(name: str, data_dir: Path | None, offline: bool, on_message: Listener) -> Source:
    if source := find_source(name, data_dir):
        return source
    if data_dir is not None or is_offline(offline):
        raise missing(name, data_dir)
    return _download(name, on_message)


def _download(name: str, on_message: Listener, url: str | None = None) -> Source:
    row = CATALOGUE[name]
    for file in row.downloads:
        urls = file.urls if url is None else (url,) if row.archive else (f"{url}/{file.name}",)
        download(file, download_folder(name), on_message, urls)
    source = find_in(name, download_folder(name))
    assert source is not None
    return source


def get_data(
    name: str,
    source: str | None = None,
    *,
    offline: bool = False,
    on_message: Listener = silent,
) -> DataStatus:
    """Bring a data set into the cache, from its sources, or from a URL or PATH; then decode it.

    A URL is that of the archive, or of the folder that holds the files.

    Raises:
        InputError: It could not be had, or is not the published one.
    """
    if name not in CATALOGUE:
        raise ConfigError(
            f"{name} needs no download; train on it: vitcli train -s data.name={name}"
        )
    row = CATALOGUE[name]
    if source is None:
        found = find_source(name, None) or _obtain(name, None, offline, on_message)
    elif source.startswith(("http://", "https://")):
        if is_offline(offline):
            raise InputError(f"{source} cannot be fetched offline; give a PATH")
        found = _download(name, on_message, source.rstrip("/"))
    else:
        found = _copy(row, Path(source).expanduser(), on_message)
    _named(row, found, None, on_message)
    return data_status(name)


def _copy(row: Row, path: Path, on_message: Listener) -> Source:
    """Copy a verified archive, original files or class folders into the cache."""
    name = row.info.name
    target = download_folder(name)
    source = Source("archive", path) if path.is_file() and row.archive else find_in(name, path)
    if source is None:
        raise missing(name, path)
    on_message(f"copying {shown(source.path)} to {shown(target)}")
    target.mkdir(parents=True, exist_ok=True)
    if source.kind == "archive":
        content = source.path.read_bytes()
        try:
            check(row.downloads[0], content)
        except Unusable as error:
            raise InputError(f"{shown(source.path)}: {error}") from error
        commit(target / row.downloads[0].name, content)
    elif source.kind == "files":
        folder = target / row.folder
        folder.mkdir(parents=True, exist_ok=True)
        for file in row.files:
            commit(folder / file, (source.path / file).read_bytes())
    else:
        for split in ("train", "test"):
            shutil.copytree(source.path / split, target / split, dirs_exist_ok=True)
    found = find_in(name, target)
    assert found is not None
    return found
