"""From files to cached arrays in canonical order: one function per kind of data set."""

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

import torch

from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import require_memory, resize_images, sort_canonically
from vitcli.runner.data.cache import Decoded, array_file, file_version, load_or_build, measured
from vitcli.runner.data.catalogue import NUM_GENERATED, CatalogueRow
from vitcli.runner.data.find import Source
from vitcli.runner.data.folder import PictureFolder, list_folder
from vitcli.runner.data.picture_reader import (
    Listener,
    Size,
    natural_size,
    read_folder,
    read_labelled,
    refuse_unreadable,
)
from vitcli.runner.data.pictures import can_read_heic
from vitcli.runner.data.readers import read_original
from vitcli.runner.errors import InputError
from vitcli.runner.text import printable


def decode_generated(name: str, size: Size | None, on_message: Listener) -> Decoded:
    """Return a generated data set. It is drawn in about 3 s, and again when its code changes."""
    from vitcli.core.data.generated import GENERATED_SETS

    row = GENERATED_SETS[name]

    def build() -> Decoded:
        with _one_thread():
            splits = row.draw(*NUM_GENERATED)
        return _make_decoded(row.class_names, splits, size)

    code = [Path(str(module.__file__)).read_bytes() for module in row.code]
    return load_or_build(array_file(name, size), (NUM_GENERATED, code), build, on_message)


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


def _make_decoded(
    class_names: tuple[str, ...], splits: tuple[Images, Images], size: Size | None
) -> Decoded:
    """Sort before resizing: one order for all sizes."""
    train, test = (resize_images(sort_canonically(images), size) for images in splits)
    return measured(class_names, train, test)


def decode_named(
    row: CatalogueRow,
    source: Source,
    size: Size | None,
    on_message: Listener,
    *,
    decoded: Decoded | None = None,
) -> Decoded:
    """Return a data set of the catalogue.

    ``decoded`` is what an equal copy of the files holds; then they are not read.
    """
    info, folder = row.info, None
    if source.kind == "folders":
        folder = list_folder(source.path, info.class_names)

    def build() -> Decoded:
        if decoded:
            return decoded
        on_message(f"reading {info.name} from {printable(source.path)}")
        require_memory(info.num_train + info.num_test, info.in_chans, size or info.img_size)
        if folder:
            return _make_decoded(info.class_names, _read_classes(row, folder, on_message), size)
        return _make_decoded(info.class_names, read_original(row, source), size)

    files = [source.path / name for name in row.files] if source.kind == "files" else [source.path]
    stamp = folder.stamp if folder else [(file.name, file_version(file)) for file in files]
    return load_or_build(array_file(info.name, size), (source.kind, stamp), build, on_message)


def _read_classes(
    row: CatalogueRow, folder: PictureFolder, on_message: Listener
) -> tuple[Images, Images]:
    info, cut = row.info, folder.num_train
    if (cut, folder.num_test) != (info.num_train, info.num_test):
        on_message(
            f"note: {printable(folder.root)} has {cut:,} + {folder.num_test:,} pictures,"
            f" {info.name} has {info.num_train:,} + {info.num_test:,}"
        )
    images, failures = read_labelled(folder, info.img_size, info.in_chans, on_message)
    refuse_unreadable(folder, [*failures.values()], "Replace them")
    return images[:cut], images[cut:]


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
        size = resize or natural_size(folder.paths)
        return read_folder(folder, size, skip_bad=skip_bad, on_message=on_message)

    parts = (folder.stamp, folder.class_names, can_read_heic())
    decoded = load_or_build(array_file(path, resize), parts, build, on_message)
    if not skip_bad:
        refuse_unreadable(folder, decoded.unreadable)
    for kind, reason in decoded.unusable_extras.items():
        if kind in extras:
            raise InputError(reason)
        on_message(f"note: {kind}s are not used: {reason.splitlines()[0].rstrip(':')}")
    train, test, where = len(decoded.train), len(decoded.test), printable(folder.root)
    if resize is None:
        height, width = decoded.train.pixels.shape[2:]
        on_message(f"{where}: read at {height}x{width}; another size: -s data.resize=N")
    if folder.num_test is None:
        on_message(
            f"{where}: {test:,} of its {train + test:,} pictures are held out for testing"
            " (no test folder)"
        )
    for note in decoded.notes:
        on_message(note)
    return decoded
