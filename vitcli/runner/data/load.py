"""Data sets by name: found or downloaded, read and checked, cached, and split.

``load_data`` reads the images. ``describe_data`` gives sizes and classes without reading images.
There are three kinds: generated data sets, those of the catalogue, and the user's own pictures.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_READERS, GENERATED, DataSpec
from vitcli.core.spec.readers import DataReader
from vitcli.core.spec.rows import load_target
from vitcli.runner.data.arrays import (
    Size,
    arranged,
    hold_out,
    keep_labels,
    pixel_digests,
    require_memory,
)
from vitcli.runner.data.cache import Decoded, array_file, cached_files, load_or_build
from vitcli.runner.data.catalogue import CATALOGUE, IN_CHANS, NUM_GENERATED, CatalogueRow, DataInfo
from vitcli.runner.data.corrections import apply_corrections, read_corrections
from vitcli.runner.data.find import (
    Listener,
    Source,
    check_name,
    find_or_download,
    find_source,
    original_files,
    refuse_unused_folder,
)
from vitcli.runner.data.folder import list_folder
from vitcli.runner.data.folds import hold_out_groups, take_fold
from vitcli.runner.data.formats.npz import list_arrays
from vitcli.runner.data.labels import notes_on_names, notes_on_pairs, same_class, same_group
from vitcli.runner.data.listing import PictureFolder, divided, file_version, group_of, own_path
from vitcli.runner.data.near_copies import exact_copies
from vitcli.runner.data.picture_reader import (
    TEST_SHARE,
    describe_problems,
    natural_size,
    read_folder,
    read_labelled,
    refuse_unreadable,
    sizes_of,
)
from vitcli.runner.data.pictures import can_read_heic
from vitcli.runner.data.readers import read_original
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.text import ignore_message, printable, quantity


def load_data(
    spec: DataSpec,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    extras: Collection[str] = (),
    seed: int | None = None,
    on_message: Listener = ignore_message,
) -> DataSet:
    """Read a data set into CPU memory in canonical order.

    With ``data.folds``, the test images are the part of ``seed``, the seed of the run. ``extras``
    are the rows of ``EXTRAS`` that the task reads beside the pictures of a folder. What is wrong
    with other rows, such as a sound that belongs to no picture, is only noted.

    If ``data_dir`` is given, only this folder is searched, or takes the place of the one that
    ``imagefolder:PATH`` or another path names. Otherwise ``VITCLI_DATA`` is searched,
    then the cache, then the network unless ``offline`` or ``VITCLI_OFFLINE`` is set. ``mean`` and
    ``std`` are those of the whole training set, including images held out by ``val_split`` or
    ``folds``.
    """
    refuse_unused_folder(spec.name, data_dir, may_move=True)
    folder = listed_for(spec, data_dir) if own_path(spec.name) else None
    groups = group_of(folder, spec.group) if folder else {}
    if spec.name in GENERATED:
        data = decode_generated(spec.name, spec.resize, on_message).data
    elif folder:
        file = array_file(spec.name, spec.resize, data_dir)
        data = decode_folder(spec, folder, groups, extras, file, on_message)
    else:
        source = find_or_download(spec.name, data_dir, offline, on_message)
        data = decode_named(CATALOGUE[spec.name], source, spec.resize, on_message).data
    if spec.folds:
        if seed is None:
            raise ValueError("data.folds: the part to test on depends on the seed of the run")
        with_test = folder is not None and folder.num_test is None
        data, note = take_fold(data, spec.folds, seed, with_test=with_test, groups=groups)
        on_message(f"{printable(spec.name)}: {note}")
    return _finish(spec, data, groups, printable(folder.root if folder else spec.name))


def _finish(spec: DataSpec, data: DataSet, groups: Mapping[str, str], place: str) -> DataSet:
    names = spec.class_names or data.class_names
    asked, present = [*map(same_class, names)], [*map(same_class, data.class_names)]
    if asked != present:
        differing = ", ".join(map(printable, sorted({*asked} ^ {*present}))) or "their order"
        raise InputError(
            f"{place}: its classes are not those of the run, or of data.class_names: {differing}"
        )
    if data.in_chans == 1 and _is_coloured(spec):
        train, test = _coloured(data.train), _coloured(data.test)
        data = replace(data, train=train, test=test, val=data.val and _coloured(data.val))
    mean, std = spec.mean or data.mean, spec.std or data.std
    if {len(mean), len(std)} != {data.in_chans}:
        raise ConfigError(f"data.mean and data.std need {data.in_chans} values for {spec.name}")
    data = replace(data, name=spec.name, class_names=names, mean=mean, std=std, spec=spec)
    if spec.val_split and data.val is None:
        count = spec.num_val(len(data.train))
        if groups:
            is_held = hold_out_groups(data.train, count / len(data.train), groups)
            train, val = data.train[~is_held], data.train[is_held]
        else:
            train, val = hold_out(data.train, count)
        data = replace(data, train=train, val=val)
    if spec.labels:
        train, unlabelled = keep_labels(data.train, spec.labels)
        data = replace(data, train=train, unlabelled=unlabelled)
    return data


def _is_coloured(spec: DataSpec) -> bool:
    return spec.mean is not None and spec.std is not None and len(spec.mean) == IN_CHANS


def _coloured(images: Images) -> Images:
    return replace(images, pixels=images.pixels[:].repeat(1, IN_CHANS, 1, 1))


def decode_generated(name: str, size: Size | None, on_message: Listener) -> Decoded:
    """Return a generated data set. It is drawn in about 3 s, and again when its code changes."""
    from vitcli.core.generated.data_sets import GENERATED_SETS

    row = GENERATED_SETS[name]

    def build() -> Decoded:
        # On 2 busy cores, drawing takes 2 s in one thread and 9 s in two, because threads of small
        # operations wait long.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            splits = row.draw(*NUM_GENERATED)
        finally:
            torch.set_num_threads(num_threads)
        return Decoded(arranged(row.class_names, *splits, size))

    code = [Path(str(module.__file__)).read_bytes() for module in row.code]
    return load_or_build(array_file(name, size), (NUM_GENERATED, code), build, on_message)


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


def describe_data(spec: DataSpec) -> DataInfo:
    """Return sizes and classes of a data set without reading its images.

    In a folder, the pictures are counted and their size is read from their headers. If the folder
    has no test set, the counts estimate the later split; duplicates and rounding may change them.
    """
    folder = listed_for(spec) if own_path(spec.name) else None
    if spec.name in GENERATED:
        from vitcli.core.generated.data_sets import GENERATED_SETS
        from vitcli.core.generated.drawing import SIDE

        names = GENERATED_SETS[spec.name].class_names
        info = DataInfo(spec.name, (SIDE, SIDE), 3, names, *NUM_GENERATED)
    elif folder:
        info = _describe_folder(spec, folder)
    else:
        info = CATALOGUE[spec.name].info
    is_held_out = folder is not None and folder.num_test is None
    if _is_coloured(spec):
        info = replace(info, in_chans=IN_CHANS)
    if spec.folds:
        whole = info.num_train + info.num_test * is_held_out
        tested = round(whole / spec.folds)
        info = replace(info, num_train=whole - tested, num_test=tested)
    own_val = folder.num_val if folder else 0
    num_val = 0 if own_val else spec.num_val(info.num_train)
    if num_val >= info.num_train:
        raise ConfigError(
            f"data.val_split {spec.val_split} is too large for {info.num_train} training images"
        )
    size, left = spec.resize or info.img_size, info.num_train - num_val
    left = min(left, spec.labels or left)
    return replace(info, img_size=size, num_train=left, num_val=own_val or num_val)


def _describe_folder(spec: DataSpec, folder: PictureFolder) -> DataInfo:
    size = spec.resize or natural_size(sizes_of(folder))
    corrections = read_corrections(spec.corrections, folder)
    kept = [corrections.get(name, 0) is not None for name in folder.names]
    end = len(kept) - folder.num_val
    num_train, num_test = sum(kept[: folder.num_train]), sum(kept[folder.num_train : end])
    if folder.num_test is None:
        num_test = round(TEST_SHARE * num_train)
        num_train -= num_test
    return DataInfo(spec.name, size, folder.in_chans, folder.class_names, num_train, num_test)


@dataclass(frozen=True, kw_only=True)
class DataStatus:
    """The place of a data set on disk; ``place`` is None if it is embedded or missing.

    ``kind`` is embedded, archive, files, folders or missing. ``decoded`` lists its cached arrays.
    """

    name: str
    place: Path | None
    kind: str
    decoded: tuple[Path, ...]


def data_status(name: str, data_dir: Path | None = None) -> DataStatus:
    """Return where a data set is and which decoded copies the cache has. Reads no image."""
    check_name(name)
    path, kind, place = own_path(name), "missing", None
    if name in GENERATED:
        kind = "embedded"
    elif path:
        row = DATA_READERS[name.partition(":")[0]]
        if not row.is_path:
            with contextlib.suppress(UserError):
                path = list_pictures(name).root
        own = "folders" if path.is_dir() else "files"
        kind, place = (own, path) if path.exists() else (kind, None)
        if row.source:
            kind, place = "own code", Path(row.source)
    elif source := find_source(name, data_dir):
        kind, place = source.kind, source.path
    return DataStatus(name=name, place=place, kind=kind, decoded=cached_files(name))
