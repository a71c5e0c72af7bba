"""Decoding of files to cached arrays in canonical order: one function per kind of data set."""

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from vitcli.core.data.source import Images, channel_stats
from vitcli.runner.data.arrays import (
    canonical_order,
    data_hash,
    require_memory,
    resize_images,
    sort_canonically,
)
from vitcli.runner.data.cache import FORMAT, Decoded, file_version, load_or_build
from vitcli.runner.data.catalogue import NUM_GENERATED, CatalogueRow
from vitcli.runner.data.find import Source, cache_root
from vitcli.runner.data.folder_reader import describe_failures, read_folder, refuse_unreadable
from vitcli.runner.data.image_folder import PictureFolder, list_folder
from vitcli.runner.data.image_reader import Listener, natural_size, read_labelled
from vitcli.runner.data.pictures import can_read_heic
from vitcli.runner.data.readers import read_original
from vitcli.runner.errors import InputError
from vitcli.runner.text import listed, printable

NUM_SHOWN = 3
"""Number of files that a note names."""
Size = tuple[int, int]


def decode_generated(name: str, size: Size | None, on_message: Listener) -> Decoded:
    """Return a generated data set. It is drawn in about 3 s, and again when its code changes."""
    from vitcli.core.generated.data_sets import GENERATED_SETS

    row = GENERATED_SETS[name]

    def build() -> Decoded:
        with _one_thread():
            splits = row.draw(*NUM_GENERATED)
        return _make_decoded(
            row.class_names, *(resize_images(sort_canonically(s), size) for s in splits)
        )

    code = b"".join(Path(str(module.__file__)).read_bytes() for module in row.code)
    key = _cache_key(NUM_GENERATED, hashlib.sha256(code).hexdigest())
    return load_or_build(array_file(name, size), key, build, on_message)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread, because on busy cores threads of small operations wait long.

    Measured on 2 busy cores: drawing a data set takes 2 s in one thread and 9 s in two threads.
    """
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def decode_named(
    row: CatalogueRow,
    source: Source,
    size: Size | None,
    on_message: Listener,
    *,
    decoded: Decoded | None = None,
) -> Decoded:
    """Return a data set of the catalogue. It is sorted before resizing: one order for all sizes.

    ``decoded`` is what an equal copy of the files holds; then they are not read.
    """
    info = row.info
    folder = list_folder(source.path, info.class_names) if source.kind == "folders" else None

    def build() -> Decoded:
        if decoded:
            return decoded
        on_message(f"reading {info.name} from {printable(source.path)}")
        require_memory(info.num_train + info.num_test, info.in_chans, size or info.img_size)
        if folder:
            train, test = _read_class_folders(row, folder, on_message)
        else:
            train, test = read_original(row, source, _scratch())
        splits = [resize_images(sort_canonically(images), size) for images in (train, test)]
        return _make_decoded(info.class_names, *splits)

    key = _cache_key(source.kind, folder.stamp if folder else _file_stamp(row, source))
    return load_or_build(array_file(info.name, size), key, build, on_message)


def decode_folder(
    path: Path,
    resize: Size | None,
    on_message: Listener,
    *,
    skip_bad: bool = False,
    extras: Collection[str] = (),
) -> Decoded:
    """Return the user's own pictures as RGB. Without a test set, a fifth of them is held out.

    Raises:
        InputError: Pictures cannot be read and ``skip_bad`` is off, or the files of a row of
            ``EXTRAS`` in ``extras`` are damaged or do not cover all pictures.
    """
    folder = list_folder(path)
    for note in folder.notes:
        on_message(note)

    def build() -> Decoded:
        size = resize or natural_size(folder)
        found = read_folder(folder, size, skip_bad=skip_bad, on_message=on_message)
        order = canonical_order(found.test)
        names = tuple(found.test_names[row] for row in order)
        decoded = _make_decoded(
            folder.class_names, sort_canonically(found.train), found.test[order], test_names=names
        )
        return replace(
            decoded,
            unreadable=found.unreadable,
            copies=found.copies,
            ambiguous=found.ambiguous,
            unusable_extras=found.unusable_extras,
        )

    parts = (folder.stamp, *folder.class_names, f"heic {can_read_heic()}")
    key = _cache_key(*parts, *([folder.extra_stamp] if folder.extra_stamp else []))
    decoded = load_or_build(folder_array_file(path, resize), key, build, on_message)
    if not skip_bad:
        refuse_unreadable(folder, decoded.unreadable)
    _check_extras(decoded, extras, on_message)
    _announce_split(folder, resize, decoded, on_message)
    _announce_problems(folder, decoded, on_message)
    return decoded


def _check_extras(decoded: Decoded, extras: Collection[str], on_message: Listener) -> None:
    for kind, reason in decoded.unusable_extras.items():
        if kind in extras:
            raise InputError(reason)
        on_message(f"note: {kind}s are not used: {reason.splitlines()[0].rstrip(':')}")


def _announce_problems(folder: PictureFolder, decoded: Decoded, on_message: Listener) -> None:
    if bad := decoded.unreadable:
        on_message(
            f"note: {len(bad):,} of {len(folder.files):,} pictures left out, because they cannot be"
            f" read:\n{listed(bad, NUM_SHOWN)}"
        )
    if copies := decoded.copies:
        on_message(
            f"note: {len(copies):,} of {len(decoded.test):,} test pictures found in train, too;"
            f" the test accuracy is too high:\n{listed(copies, NUM_SHOWN)}"
        )
    if twins := decoded.ambiguous:
        on_message(
            f"note: {len(twins):,} of {len(decoded.train):,} training pictures found in another"
            f" class, too:\n{listed(twins, NUM_SHOWN)}"
        )


def _announce_split(
    folder: PictureFolder, resize: Size | None, decoded: Decoded, on_message: Listener
) -> None:
    train, test, where = len(decoded.train), len(decoded.test), printable(folder.root)
    if resize is None:
        height, width = decoded.train.pixels.shape[2:]
        on_message(f"{where}: read at {height}x{width}; another size: -s data.resize=N")
    if folder.test is None:
        on_message(
            f"{where}: {test:,} of its {train + test:,} pictures are held out for testing"
            " (no test folder)"
        )


def _make_decoded(
    class_names: tuple[str, ...], train: Images, test: Images, *, test_names: tuple[str, ...] = ()
) -> Decoded:
    mean, std = channel_stats(train.pixels)
    return Decoded(
        class_names=class_names,
        train=train,
        test=test,
        mean=mean,
        std=std,
        data_hash=data_hash((train, test)),
        test_names=test_names,
    )


def _read_class_folders(
    row: CatalogueRow, folder: PictureFolder, on_message: Listener
) -> tuple[Images, Images]:
    info, test = row.info, folder.test
    assert test is not None
    if (len(folder.train), len(test)) != (info.num_train, info.num_test):
        on_message(
            f"note: {printable(folder.root)} has {len(folder.train):,} + {len(test):,} pictures,"
            f" {info.name} has {info.num_train:,} + {info.num_test:,}"
        )
    images, failures = read_labelled(folder.files, info.img_size, info.in_chans, on_message)
    refuse_unreadable(folder, describe_failures(folder, failures), "Replace them")
    cut = len(folder.train)
    return (
        images[:cut],
        images[cut:],
    )


def array_file(name: str, size: Size | None) -> Path:
    """Return the cache file of a named data set."""
    suffix = f"{size[0]}x{size[1]}" if size else "native"
    return cache_root() / "arrays" / f"{name}-{suffix}.safetensors"


def folder_array_file(path: Path, size: Size | None) -> Path:
    """Return the cache file of a folder of pictures."""
    where = str(path.resolve()).encode(errors="surrogateescape")
    return array_file(f"imagefolder-{hashlib.sha256(where).hexdigest()[:12]}", size)


def _cache_key(*parts: object) -> str:
    return hashlib.sha256(json.dumps([FORMAT, *map(str, parts)]).encode()).hexdigest()


def _file_stamp(row: CatalogueRow, source: Source) -> list[tuple[str, tuple[int, ...]]]:
    files = [source.path]
    if source.kind == "files":
        files = [source.path / name for name in row.files]
    return [(file.name, file_version(file.stat())) for file in files]


def _scratch() -> Path | None:
    """Return a folder for temporary files in the cache; None if the cache cannot be written."""
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=root).close()
    except OSError:
        return None
    return root
