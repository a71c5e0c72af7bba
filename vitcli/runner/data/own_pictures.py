"""The user's own pictures: listed by the row of their prefix, read, checked and corrected."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitcli.core.data.source import DataSet
from vitcli.core.spec import DATA_READERS, DataSpec
from vitcli.core.spec.data import DataReader
from vitcli.core.spec.rows import load_target
from vitcli.runner.data.arrays import pixel_digests
from vitcli.runner.data.cache import Decoded, array_file, load_or_build
from vitcli.runner.data.catalogue import DataInfo
from vitcli.runner.data.corrections import apply_corrections, read_corrections
from vitcli.runner.data.find import Listener, own_path
from vitcli.runner.data.formats.npz import list_arrays
from vitcli.runner.data.labels import notes_on_names, notes_on_pairs, same_group
from vitcli.runner.data.listing import PictureFolder, divided, group_of
from vitcli.runner.data.near_copies import exact_copies
from vitcli.runner.data.picture_reader import (
    TEST_SHARE,
    describe_problems,
    natural_size,
    read_folder,
    refuse_unreadable,
    sizes_of,
)
from vitcli.runner.data.pictures import can_read_heic
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.text import printable, quantity


def read_own(
    spec: DataSpec, data_dir: Path | None, extras: Collection[str], on_message: Listener
) -> tuple[DataSet, Mapping[str, str], bool]:
    """Return the pictures, the group of each, and whether their test set was held out here."""
    folder = listed_for(spec, data_dir)
    groups = group_of(folder, spec.group)
    file = array_file(spec.name, spec.resize, data_dir)
    data = decode_folder(spec, folder, groups, extras, file, on_message)
    return data, groups, folder.num_test is None


def decode_folder(
    spec: DataSpec,
    folder: PictureFolder,
    groups: Mapping[str, str],
    extras: Collection[str],
    file: Path,
    on_message: Listener,
) -> DataSet:
    """Return the user's own pictures. Without a test set, a fifth of them is held out.

    The corrections are made after that, so they move no picture into the test set or out of it.
    ``file`` is the cache file.
    """
    for note in folder.notes:
        on_message(note)
    corrections = read_corrections(spec.corrections, folder)

    def build() -> Decoded:
        size = spec.resize or natural_size(sizes_of(folder))
        return read_folder(
            folder,
            size,
            fit=spec.fit,
            skip_bad=spec.skip_bad,
            groups=groups,
            on_message=on_message,
        )

    more = (folder.num_val, sorted(groups.items())) if folder.num_val or groups else ()
    parts = (folder.stamp, folder.class_names, can_read_heic(), spec.fit, *more)
    decoded = load_or_build(file, parts, build, on_message)
    if not spec.skip_bad:
        refuse_unreadable(folder, decoded.unreadable)
    _report_extras(decoded, extras, on_message)
    if spec.folds:  # they keep pictures that look alike on one side
        decoded = replace(decoded, same={"twins": decoded.same["twins"]})
    data, where = decoded.data, printable(folder.root)
    if corrections:
        data = apply_corrections(data, corrections)
        named = (
            zip(pixel_digests(part.pixels), part.names, strict=True)
            for part in (data.test, data.train)
        )
        copies = exact_copies(*named)  # another copy than the one named may be left
        decoded = replace(decoded, same={**decoded.same, "copies": copies})
        num_out = sum(label is None for label in corrections.values())
        changed = quantity(len(corrections) - num_out, "label")
        out = quantity(num_out, "picture")
        on_message(f"{where}: {changed} corrected, {out} left out ({spec.corrections})")
    if spec.resize is None:
        height, width = data.img_size
        on_message(f"{where}: read at {height}x{width}; another size: -s data.resize=N")
    if folder.num_test is None and not spec.folds:
        counts = f"{len(data.test):,} of its {len(data.train) + len(data.test):,} pictures"
        on_message(f"{where}: {counts} are held out for testing (no test folder)")
    for note in describe_problems(decoded, data):
        on_message(note)
    leaks = () if spec.folds else _leaks(decoded, data, groups)
    return replace(data, leaks=leaks)


def _leaks(decoded: Decoded, data: DataSet, groups: Mapping[str, str]) -> tuple[str, ...]:
    left = {*data.train.names, *data.test.names}
    copies = [f"{a} = {b}" for a, b in decoded.same.get("copies", ()) if {a, b} <= left]
    held_out = [*data.test.names, *(data.val.names if data.val else ())]
    pairs = divided(held_out, data.train.names, groups)
    return (*copies, *(f"{a} and {b} (group {printable(groups[a])!r})" for a, b in pairs))


def _report_extras(decoded: Decoded, extras: Collection[str], on_message: Listener) -> None:
    for kind, reason in decoded.unusable_extras.items():
        if kind in extras:
            raise InputError(reason)
        on_message(f"note: {kind}s are not used: {reason.splitlines()[0].rstrip(':')}")


def list_pictures(name: str, data_dir: Path | None = None) -> PictureFolder:
    """Return the user's own pictures, as the row of the prefix lists them."""
    row, path = require_packages(name), own_path(name, data_dir)
    folder = load_target(row.build)(path if row.is_path else str(path))
    if not isinstance(folder, PictureFolder):
        place = Path(str(path) if row.is_path else name)
        folder = list_arrays(place, {key: np.asarray(folder[key]) for key in folder})
    groups = sorted({*map(same_group, folder.groups)} - {""})
    notes = [*notes_on_names(folder.class_names), *notes_on_pairs(groups, "groups", "group")]
    if empty := sorted({group for group in folder.groups if group and not same_group(group)}):
        notes.append(f"note: pictures with the group {printable(empty[0])!r} are in no group")
    return replace(folder, notes=(*folder.notes, *notes))


def require_packages(name: str) -> DataReader:
    """Return the row of a name of the user's own pictures."""
    prefix = name.partition(":")[0]
    row = DATA_READERS[prefix]
    if missing := [package for package in row.packages if find_spec(package) is None]:
        raise ConfigError(
            f"{prefix}: needs the package {missing[0]}; in the checkout, type: pip install '.[hub]'"
        )
    return row


def listed_for(spec: DataSpec, data_dir: Path | None = None) -> PictureFolder:
    """Return the pictures that a spec asks for: its own validation split only if it is wanted."""
    folder = list_pictures(spec.name, data_dir)
    wanted = spec.val_split == folder.num_val or 0 < spec.val_split < 1
    if not folder.num_val or (wanted and not spec.folds):
        return folder
    note = (
        f"{printable(folder.root)}: {folder.num_val:,} validation pictures are not used; to use"
        f" them, type: -s data.val_split={folder.num_val}"
    )
    return replace(folder.without_val(), notes=(*folder.notes, note))


def describe_folder(spec: DataSpec, folder: PictureFolder) -> DataInfo:
    size = spec.resize or natural_size(sizes_of(folder))
    corrections = read_corrections(spec.corrections, folder)
    kept = [corrections.get(name, 0) is not None for name in folder.names]
    end = len(kept) - folder.num_val
    num_train, num_test = sum(kept[: folder.num_train]), sum(kept[folder.num_train : end])
    if folder.num_test is None:
        num_test = round(TEST_SHARE * num_train)
        num_train -= num_test
    return DataInfo(spec.name, size, folder.in_chans, folder.class_names, num_train, num_test)
