"""Original files of a data set, checked by MD5 and read with torchvision.

The batches of CIFAR are pickles. (The other pickles that vitcli reads are .pt files, in
``plugins/weights/tensors.py``.) Each file is read once. If its MD5 is right, its bytes are written
to a private folder, and torchvision reads that copy, so a file cannot be replaced between the check
and the use. Files with another MD5 are refused.
"""

import gzip
import hashlib
import os
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vitcli.core.data.source import Images
from vitcli.runner.data.arrays import Size, arranged, require_memory
from vitcli.runner.data.cache import Decoded, array_file, load_or_build
from vitcli.runner.data.catalogue import CatalogueRow
from vitcli.runner.data.find import (
    Source,
    cache_root,
    explain_write_errors,
    get_command,
    original_files,
)
from vitcli.runner.data.folder import list_folder
from vitcli.runner.data.listing import PictureFolder, file_version
from vitcli.runner.data.picture_reader import read_labelled, refuse_unreadable
from vitcli.runner.errors import InputError
from vitcli.runner.files import scratch_folder
from vitcli.runner.text import Listener, printable

MAX_FILE = 256 * 2**20
MAX_MEMBERS = 1000


def read_original(row: CatalogueRow, source: Source) -> tuple[Images, Images]:
    root = cache_root()
    with scratch_folder(root if os.access(root, os.W_OK) else None, "verified-") as folder:
        private = folder / row.folder
        private.mkdir(parents=True, exist_ok=True)
        for name, content in published_files(row, source):
            plain = gzip.decompress(content) if name.endswith(".gz") else content
            with explain_write_errors(private):
                (private / name.removesuffix(".gz")).write_bytes(plain)
        return _read(row, folder, True), _read(row, folder, False)


def published_files(row: CatalogueRow, source: Source) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each original file; refuse a file that is not as published."""
    sums, times = row.md5, dict(zip(row.files, row.gzip_times, strict=False))
    for name, content in _contents(row, source):
        known = [content]
        if name in times and content[:4] == b"\x1f\x8b\x08\x00":
            # Compressed without name and time (gzip -n), as in Debian's dataset-fashion-mnist.
            head = b"\x1f\x8b\x08\x08" + times[name].to_bytes(4, "little") + content[8:10]
            head += name.removesuffix(".gz").encode() + b"\0"
            known.append(head + content[10:])
        if sums[name] not in [hashlib.md5(c, usedforsecurity=False).hexdigest() for c in known]:
            raise InputError(
                f"{printable(source.path)}: {name} is not the published file (MD5 differs);"
                f" get a fresh copy: {get_command(row.info.name)}"
            )
        yield name, content


def _contents(row: CatalogueRow, source: Source) -> Iterator[tuple[str, bytes]]:
    try:
        if source.kind == "archive":
            yield from _from_archive(row, source.path)
        else:
            for name in row.files:
                with (source.path / name).open("rb") as file:
                    yield name, file.read(MAX_FILE)
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(
            f"{printable(source.path)} is damaged or cannot be read ({printable(error)});"
            f" get a fresh copy: {get_command(row.info.name)}"
        ) from error


def _from_archive(row: CatalogueRow, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted members by exact name. Members are read in memory, never extracted."""
    wanted = {f"{row.folder}/{name}": name for name in row.files}
    with tarfile.open(path, "r|gz") as archive:
        for count, member in enumerate(archive):
            if count >= MAX_MEMBERS or member.size > MAX_FILE:
                raise InputError(f"{printable(path)} is not the published archive")
            name = wanted.pop(member.name, None) if member.isreg() else None
            if name and (file := archive.extractfile(member)):
                yield name, file.read()
            if not wanted:
                return
    raise InputError(
        f"{printable(path)} is not the published archive: {', '.join(sorted(wanted))} is missing"
    )


def _read(row: CatalogueRow, root: Path, train: bool) -> Images:
    reader = row.torchvision_class
    split: dict[str, Any] = {"train": train}
    if hasattr(reader, "split_list"):
        split = {"split": "train" if train else "test"}
    with warnings.catch_warnings():
        # NumPy 2.4.0 to 2.4.4 warn about pickles as old as these (numpy/numpy#31177).
        warnings.simplefilter("ignore")
        data = reader(root, **split)
    pixels = torch.as_tensor(data.data)
    if pixels.ndim == 3:
        pixels = pixels[:, None]
    elif pixels.shape[-1] == row.info.in_chans:
        pixels = pixels.permute(0, 3, 1, 2)
    labels = data.targets if hasattr(data, "targets") else data.labels
    return Images(pixels.contiguous(), torch.as_tensor(labels, dtype=torch.int64))


def decode_named(
    row: CatalogueRow,
    source: Source,
    size: Size | None,
    on_message: Listener,
    *,
    decoded: Decoded | None = None,
) -> Decoded:
    """Decode a data set of the catalogue; ``decoded`` is what equal files gave before."""
    info, folder = row.info, None
    if source.kind == "folders":
        folder = list_folder(source.path, info.class_names).without_val()

    def build() -> Decoded:
        if decoded:
            return decoded
        on_message(f"reading {info.name} from {printable(source.path)}")
        require_memory(info.num_train + info.num_test, info.in_chans, size or info.img_size)
        splits = _read_classes(row, folder, on_message) if folder else read_original(row, source)
        return Decoded(arranged(info.class_names, *splits, size))

    files = original_files(row, source)
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
