"""Data sets by name, generated, of the catalogue or the user's own: found, read and split."""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch

from vitcli.core.data.source import DataSet, Images
from vitcli.core.spec import DATA_READERS, GENERATED, DataSpec
from vitcli.runner.data.arrays import Size, arranged, hold_out, keep_labels
from vitcli.runner.data.cache import Decoded, array_file, cached_files, load_or_build
from vitcli.runner.data.catalogue import CATALOGUE, IN_CHANS, NUM_GENERATED, DataInfo
from vitcli.runner.data.find import (
    check_name,
    find_or_download,
    find_source,
    own_path,
    refuse_unused_folder,
)
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.files import sha256
from vitcli.runner.text import Listener, ignore_message, printable, quantity


def load_data(
    spec: DataSpec,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    extras: Collection[str] = (),
    seed: int | None = None,
    kept: Mapping[str, str] = MappingProxyType({}),
    on_message: Listener = ignore_message,
) -> DataSet:
    """Read a data set into CPU memory in canonical order.

    With ``data.folds``, the test images are the part of ``seed``, the seed of the run. ``extras``
    are the rows of ``EXTRAS`` that the task reads beside the pictures of a folder. What is wrong
    with other rows, such as a sound that belongs to no picture, is only noted. ``kept`` maps the
    contents of own pictures to the sides that they keep, see split.json.

    If ``data_dir`` is given, only this folder is searched, or takes the place of the one that
    ``imagefolder:PATH`` or another path names. Otherwise ``VITCLI_DATA`` is searched,
    then the cache, then the network unless ``offline`` or ``VITCLI_OFFLINE`` is set. ``mean`` and
    ``std`` are those of the whole training set, including images held out by ``val_split`` or
    ``folds``.
    """
    if data_dir:
        refuse_unused_folder(spec.name, data_dir, may_move=True)
    sides: Mapping[str, str] = {}
    with_test = False
    if spec.name in GENERATED:
        data = decode_generated(spec.name, spec.resize, on_message).data
    elif own_path(spec.name):
        from vitcli.runner.data.picture_reader import read_own

        data, sides, with_test = read_own(spec, data_dir, extras, kept, on_message)
    else:
        from vitcli.runner.data.readers import decode_named

        source = find_or_download(spec.name, data_dir, offline, on_message)
        data = decode_named(CATALOGUE[spec.name], source, spec.resize, on_message).data
    groups = data.groups
    if groups and (spec.folds or (spec.val_split and data.val is None)):
        # They decide which images are held out, so other groups are other splits.
        parts = [[groups.get(name) for name in part.names] for part in (data.train, data.test)]
        data = replace(data, data_hash=sha256(repr((data.data_hash, parts)).encode()))
    if spec.folds:
        from vitcli.runner.data.folds import take_fold
        from vitcli.runner.data.picture_reader import notes_on_absent

        if seed is None:
            raise ValueError("data.folds: the part to test on depends on the seed of the run")
        for note in notes_on_absent(kept, data.contents) if kept else ():
            on_message(note)
        known = {name: kept[content] for name, content in data.contents.items() if content in kept}
        data, sides, note = take_fold(
            data, spec.folds, seed, with_test=with_test, groups=groups, known=known
        )
        on_message(f"{printable(spec.name)}: {note}")
    data = _finish(spec, data, printable(str(data_dir or spec.name)))
    if spec.val_split and data.val is None:
        data = _hold_out_val(data, spec.num_val(len(data.train)), groups, sides)
    if spec.labels:
        train, unlabelled = keep_labels(data.train, spec.labels)
        data = replace(data, train=train, unlabelled=unlabelled)
    return data


def _hold_out_val(
    data: DataSet, count: int, groups: Mapping[str, str], sides: Mapping[str, str]
) -> DataSet:
    """Return the data set with about ``count`` validation images, those of ``sides`` among them.

    Of the new pictures, the same share is held out. If no known or new picture can be, the training
    images are divided as if all were new. Other images than ``hold_out`` takes change the hash.
    """
    images = data.train
    train, val = _held_out(images, count, groups)
    if not data.contents:
        return replace(data, train=train, val=val)
    is_new = torch.tensor([sides.get(name) not in ("train", "val") for name in images.names])
    new, share = images[is_new], count
    if len(new) < len(images):
        share = min(round(count * len(new) / len(images)), len(new) - len(new.labels.unique()))
    chosen = set[str]()
    with contextlib.suppress(InputError):  # one new group is for training
        chosen = _chosen_for_val(data, new, share, groups) if share else chosen
    is_val = torch.tensor([sides.get(n) == "val" or n in chosen for n in images.names])
    is_val &= torch.isin(images.labels, images.labels[~is_val])  # a class keeps training images
    names = {*images[is_val].names} or _chosen_for_val(data, images, count, groups)
    if names == {*val.names}:
        return replace(data, train=train, val=val)
    is_val = torch.tensor([name in names for name in images.names])
    parts = data.data_hash, sorted(data.contents[name] for name in names)
    data_hash = sha256(repr(parts).encode())
    return replace(data, train=images[~is_val], val=images[is_val], data_hash=data_hash)


def _chosen_for_val(
    data: DataSet, images: Images, count: int, groups: Mapping[str, str]
) -> set[str]:
    """Return the names of the images to hold out. Those that look alike are on one side, but not
    with folds, whose data hash is the same for each seed.
    """
    train, val = _held_out(images, count, groups)
    if not groups and not (data.spec and data.spec.folds):
        from vitcli.runner.data.folds import alike_together

        val = alike_together(train, val, data.class_names, data.contents)
    return {*val.names}


def _held_out(images: Images, count: int, groups: Mapping[str, str]) -> tuple[Images, Images]:
    if not groups:
        return hold_out(images, count)
    from vitcli.runner.data.folds import hold_out_groups

    is_held = hold_out_groups(images, count / len(images), groups)
    return images[~is_held], images[is_held]


def _finish(spec: DataSpec, data: DataSet, place: str) -> DataSet:
    names = spec.class_names or data.class_names
    if names != data.class_names:
        from vitcli.runner.data.labels import same_class

        asked, present = [*map(same_class, names)], [*map(same_class, data.class_names)]
        if asked != present:
            differing = ", ".join(map(printable, sorted({*asked} ^ {*present}))) or "their order"
            raise InputError(
                f"{place}: its classes are not those of the run, or of data.class_names:"
                f" {differing}"
            )
    if data.in_chans == 1 and _is_coloured(spec):
        train, test = _coloured(data.train), _coloured(data.test)
        data = replace(data, train=train, test=test, val=data.val and _coloured(data.val))
    mean, std = spec.mean or data.mean, spec.std or data.std
    if {len(mean), len(std)} != {data.in_chans}:
        raise ConfigError(
            f"{spec.name}: pictures of {quantity(data.in_chans, 'channel')}, but data.mean and"
            f" data.std have {len(mean)} and {quantity(len(std), 'value')}; a trained model needs"
            " pictures of as many channels as it learned: see data.channels"
        )
    return replace(data, name=spec.name, class_names=names, mean=mean, std=std, spec=spec)


def _is_coloured(spec: DataSpec) -> bool:
    given = spec.mean is not None and spec.std is not None and len(spec.mean) == IN_CHANS
    return given and spec.channels != "pages"


def _coloured(images: Images) -> Images:
    return replace(images, pixels=images.pixels.repeat(1, IN_CHANS, 1, 1))


def decode_generated(name: str, size: Size | None, on_message: Listener) -> Decoded:
    """Return a generated data set. It is drawn in about 3 s, and again when its code changes."""
    from vitcli.core.generated.data_sets import generated_set

    row = generated_set(name)

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


def describe_data(spec: DataSpec) -> DataInfo:
    """Return sizes and classes of a data set without reading its images.

    In a folder, the pictures are counted and their size is read from their headers. If the folder
    has no test set, the counts estimate the later split; duplicates and rounding may change them.
    """
    is_held_out, own_val = False, 0
    if spec.name in GENERATED:
        from vitcli.core.generated.data_sets import generated_set
        from vitcli.core.generated.drawing import SIDE

        names = generated_set(spec.name).class_names
        info = DataInfo(spec.name, (SIDE, SIDE), 3, names, *NUM_GENERATED)
    elif own_path(spec.name):
        from vitcli.runner.data.picture_reader import describe_folder, listed_for

        folder = listed_for(spec)
        info, own_val = describe_folder(spec, folder), folder.num_val
        is_held_out = folder.num_test is None
    else:
        info = CATALOGUE[spec.name].info
    if _is_coloured(spec):
        info = replace(info, in_chans=IN_CHANS)
    if spec.folds:
        whole = info.num_train + info.num_test * is_held_out
        tested = round(whole / spec.folds)
        info = replace(info, num_train=whole - tested, num_test=tested)
    num_val = 0 if own_val else spec.num_val(info.num_train)
    if num_val >= info.num_train:
        raise ConfigError(
            f"data.val_split {spec.val_split} is too large for {info.num_train} training images"
        )
    size, left = spec.resize or info.img_size, info.num_train - num_val
    left = min(left, spec.labels or left)
    return replace(info, img_size=size, num_train=left, num_val=own_val or num_val)


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
    check_name(name)
    path, kind, place = own_path(name), "missing", None
    if name in GENERATED:
        kind = "embedded"
    elif path:
        row = DATA_READERS[name.partition(":")[0]]
        if not row.is_path:
            with contextlib.suppress(UserError):
                from vitcli.runner.data.picture_reader import list_pictures

                path = list_pictures(name).root
        own = "folders" if path.is_dir() else "files"
        kind, place = (own, path) if path.exists() else (kind, None)
        if row.source:
            kind, place = "own code", Path(row.source)
    elif source := find_source(name, data_dir):
        kind, place = source.kind, source.path
    return DataStatus(name=name, place=place, kind=kind, decoded=cached_files(name))
