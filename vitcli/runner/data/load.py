"""Data sets by name: found or downloaded, checked, decoded, sorted, cached, and split.

``load_data`` reads the images. ``describe_data`` gives sizes and classes without reading images.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from vitcli.core.data.source import DataSet
from vitcli.core.spec import GENERATED, DataSpec
from vitcli.runner.data.arrays import hold_out, keep_labels
from vitcli.runner.data.cache import Decoded, cached_files
from vitcli.runner.data.catalogue import CATALOGUE, IN_CHANS, NUM_GENERATED, DataInfo, folder_path
from vitcli.runner.data.decode import decode_folder, decode_generated, decode_named
from vitcli.runner.data.fetch import find_or_download
from vitcli.runner.data.find import check_name, find_source, refuse_unused_folder
from vitcli.runner.data.folder import list_folder
from vitcli.runner.data.picture_reader import TEST_SHARE, Listener, natural_size
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import composed, ignore_message


def load_data(
    spec: DataSpec,
    *,
    data_dir: Path | None = None,
    offline: bool = False,
    extras: Collection[str] = (),
    on_message: Listener = ignore_message,
) -> DataSet:
    """Read a data set into CPU memory in canonical order.

    ``extras`` are the rows of ``EXTRAS`` that the task reads beside the pictures of a folder. What
    is wrong with other rows, such as a sound that belongs to no picture, is only noted.

    If ``data_dir`` is given, only this folder is searched, or takes the place of the folder that
    ``imagefolder:PATH`` names. Otherwise ``VITCLI_DATA`` is searched,
    then the cache, then the network unless ``offline`` or ``VITCLI_OFFLINE`` is set. ``mean`` and
    ``std`` are those of the whole training set, including images held out by ``val_split``.

    Raises:
        InputError: The data set is missing, damaged, or differs from the published one.
        ConfigError: The spec does not fit the data set, or ``data_dir`` would be ignored.
        ResourceError: The data set does not fit into memory.
    """
    refuse_unused_folder(spec.name, data_dir, may_move=True)
    if spec.name in GENERATED:
        return _finish(spec, decode_generated(spec.name, spec.resize, on_message))
    if path := folder_path(spec.name):
        decoded = decode_folder(
            data_dir or path, spec.resize, on_message, skip_bad=spec.skip_bad, extras=extras
        )
        return _finish(spec, decoded)
    source = find_or_download(spec.name, data_dir, offline, on_message)
    return _finish(spec, decode_named(CATALOGUE[spec.name], source, spec.resize, on_message))


def _finish(spec: DataSpec, decoded: Decoded) -> DataSet:
    names = spec.class_names
    if names and [*map(composed, names)] != [*map(composed, decoded.class_names)]:
        raise ConfigError(
            f"data.class_names is set to {', '.join(names)},"
            f" but {spec.name} has {', '.join(decoded.class_names)}"
        )
    mean, std = spec.mean or decoded.mean, spec.std or decoded.std
    if {len(mean), len(std)} != {len(decoded.mean)}:
        raise ConfigError(f"data.mean and data.std need {len(decoded.mean)} values for {spec.name}")
    train, val, unlabelled = decoded.train, None, None
    if spec.val_split:
        train, val = hold_out(train, spec.val_split)
    if spec.labels:
        train, unlabelled = keep_labels(train, spec.labels)
    return DataSet(
        name=spec.name,
        class_names=names or decoded.class_names,
        train=train,
        test=decoded.test,
        val=val,
        mean=mean,
        std=std,
        data_hash=decoded.data_hash,
        test_names=decoded.test_names,
        unlabelled=unlabelled,
    )


def describe_data(spec: DataSpec) -> DataInfo:
    """Return sizes and classes of a data set without reading its images.

    In a folder, the pictures are counted and their size is read from their headers. If the folder
    has no test set, the counts estimate the later split; duplicates and rounding may change them.
    """
    if spec.name in GENERATED:
        info = _describe_generated(spec.name)
    elif path := folder_path(spec.name):
        info = _describe_folder(spec, path)
    else:
        info = CATALOGUE[spec.name].info
    if spec.val_split >= info.num_train:
        raise ConfigError(
            f"data.val_split {spec.val_split} is too large for {info.num_train} training images"
        )
    size, left = spec.resize or info.img_size, info.num_train - spec.val_split
    left = min(left, spec.labels or left)
    return replace(info, img_size=size, num_train=left)


def _describe_generated(name: str) -> DataInfo:
    from vitcli.core.data.drawing import SIDE
    from vitcli.core.data.generated import GENERATED_SETS

    return DataInfo(name, (SIDE, SIDE), 3, GENERATED_SETS[name].class_names, *NUM_GENERATED)


def _describe_folder(spec: DataSpec, path: Path) -> DataInfo:
    folder = list_folder(path)
    size, num_test = spec.resize or natural_size(folder.paths), folder.num_test
    if num_test is None:
        num_test = round(TEST_SHARE * folder.num_train)
    num_train = len(folder.paths) - num_test
    return DataInfo(spec.name, size, IN_CHANS, folder.class_names, num_train, num_test)


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
    """Return where a data set is and which decoded copies the cache has. Reads no image.

    Raises:
        ConfigError: There is no data set of this name.
    """
    check_name(name)
    path, kind, place = folder_path(name), "missing", None
    if name in GENERATED:
        kind = "embedded"
    elif path:
        kind, place = ("folders", path) if path.is_dir() else (kind, None)
    elif source := find_source(name, data_dir):
        kind, place = source.kind, source.path
    return DataStatus(name=name, place=place, kind=kind, decoded=cached_files(path or name))
