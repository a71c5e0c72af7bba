"""Images and labels in arrays: a NumPy file (.npz), or a mapping that a user's own reader returns.

Axes: N images, C channels, H W pixels.
"""

import contextlib
import hashlib
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitcli.core.data.source import PORTION, DataSet, Images
from vitcli.runner.data.arrays import arranged, pixel_digests
from vitcli.runner.data.deep import RefusedError, Seen, finer_values, notes_on
from vitcli.runner.data.labels import (
    in_order,
    not_used,
    notes_on_names,
    refuse_names,
    without_blanks,
)
from vitcli.runner.data.listing import (
    SPLITS,
    PictureFolder,
    file_version,
    split_of,
    splits_in_order,
)
from vitcli.runner.data.pictures import MAX_BYTES, MAX_PIXELS, scaled
from vitcli.runner.errors import InputError
from vitcli.runner.text import Listener, composed, printable, quantity

KEY = re.compile(
    r"(?:(?P<split>[a-z]+)_)?(?P<what>images|labels|groups)|(?P<xy>[xy])_(?P<of>[a-z]+)"
)
WANTED = (
    "images and labels, or train_images, train_labels, test_images ..., or x_train, y_train ..."
)
MOST_CHANNELS, MOST_NAMED = 64, 20
MOST_LABEL_BYTES = 2**28
"""Arrays of labels, groups and class names are read as a whole; no larger ones are."""


class NpzArray:
    """An array in a .npz file, of which only the header is read at first.

    An array of Python objects is refused, and one with more or fewer bytes than its header says.
    """

    def __init__(self, path: Path, member: str, archive: zipfile.ZipFile) -> None:
        self.path, self.member = path, member
        with _open(path, member, archive) as (file, size):
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_2_0
            if version == (1, 0):
                read = np.lib.format.read_array_header_1_0
            try:
                self.shape, is_fortran, self.dtype = read(file)
            except MemoryError as error:  # Python's parser raises it for a short, nested text
                raise ValueError("its header is nested too deeply") from error
            self._start = file.tell()
            if self.dtype.hasobject or (is_fortran and len(self.shape) > 1):
                kind = "Python objects" if self.dtype.hasobject else "values in Fortran's order"
                raise ValueError(f"it holds {kind}; save numbers or text, in C order")
            self.nbytes = math.prod(self.shape) * self.dtype.itemsize
            if self.nbytes != size - self._start:
                held = size - self._start
                raise ValueError(f"{held:,} bytes of values, the header says {self.nbytes:,}")

    def parts(self, count: int) -> Iterator[np.ndarray]:
        each = math.prod(self.shape[1:]) * self.dtype.itemsize
        with _open(self.path, self.member) as (file, _):
            file.read(self._start)
            for start in range(0, self.shape[0], count):
                rows = min(count, self.shape[0] - start)
                content = bytearray(file.read(rows * each))
                yield np.frombuffer(content, self.dtype).reshape(rows, *self.shape[1:])


Array = NpzArray | np.ndarray


@contextlib.contextmanager
def _open(
    path: Path, member: str, archive: zipfile.ZipFile | None = None
) -> Iterator[tuple[BinaryIO, int]]:
    """Open an array of a .npz file, which may be open, and yield it with its size in bytes."""
    try:
        opened = contextlib.nullcontext(archive) if archive else zipfile.ZipFile(path)
        with opened as whole, whole.open(member) as file:
            yield file, whole.getinfo(member).file_size  # type: ignore[misc]
    except MemoryError:
        raise
    except Exception as error:  # of many kinds: of zip files, their decoders, and headers
        what = f"{member.removesuffix('.npy')} cannot be read: {error}"
        raise InputError(f"{printable(path)}: {printable(what)}") from error


def open_npz(path: Path) -> PictureFolder:
    """List the images of a .npz file. Nothing in it is unpickled."""
    if not path.is_file():
        raise InputError(f"{printable(path)}: no such file")
    try:
        archive = zipfile.ZipFile(path)
    except MemoryError:
        raise
    except Exception as error:  # of many kinds, as above
        raise InputError(f"{printable(path)} is no .npz file: {error}; get a fresh copy") from error
    with archive:  # once for all: it may have an array for each of thousands of images
        members = [name for name in archive.namelist() if name.endswith(".npy")]
        arrays = {name.removesuffix(".npy"): NpzArray(path, name, archive) for name in members}
    return list_arrays(path, arrays, repr(file_version(path)))


def list_arrays(path: Path, arrays: Mapping[str, Array], facts: str = "") -> PictureFolder:
    """List images in arrays by name, see WANTED.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), uint8 or uint16; labels are (N,) integers
    from 0 or texts. ``class_names`` has names, ``groups`` or ``train_groups`` the group of each
    image. ``facts`` change when the arrays change; by default they are a hash.
    """
    arrays = {key: _without_objects(array) for key, array in arrays.items()}
    found: dict[str, dict[str, str]] = {split: {} for split in ("", *SPLITS)}
    for key in arrays:
        if match := KEY.fullmatch(key):
            named, what = match["split"] or match["of"] or "", match["what"]
            what = what or {"x": "images", "y": "labels"}[match["xy"]]
            split = split_of(named) if named else ""
            if split is not None:
                found[split][what] = key
    keys = {split: own for split, own in found.items() if "images" in own}
    where = printable(path)
    if not keys or ("" in keys and len(keys) > 1):
        held = ", ".join([*islice(arrays, MOST_NAMED), *["..."] * (len(arrays) > MOST_NAMED)])
        raise InputError(f"{where} has {printable(held) or 'no arrays'}; needed are {WANTED}")
    try:
        return _listed(path, arrays, keys, facts or _digest(arrays))
    except (ValueError, TypeError) as error:
        raise InputError(f"{where}: {error}") from error


def _without_objects(array: Array) -> Array:
    """Return texts or integers, which pandas stores as Python objects, as an array of their own."""
    if isinstance(array, NpzArray) or array.dtype.kind != "O":
        return array
    values = array.reshape(-1).tolist()
    is_plain = any(
        all(isinstance(value, kind) and not isinstance(value, bool) for value in values)
        for kind in (str, int | np.integer)
    )
    return np.array(values).reshape(array.shape) if values and is_plain else array


def _listed(
    path: Path, arrays: Mapping[str, Array], keys: Mapping[str, Mapping[str, str]], facts: str
) -> PictureFolder:
    pixels, labels, groups = list[ImageArray](), list[np.ndarray](), list[str]()
    splits, paths = list[str](), list[str]()
    for split, own in keys.items():
        name = own["images"]
        pixels.append(ImageArray(name, arrays[name]))
        count = pixels[-1].shape[0]
        for what in ("labels", "groups"):
            if what in own and (other := len(_whole(arrays[own[what]]))) != count:
                raise ValueError(f"{count:,} images in {name}, but {other:,} in {own[what]}")
        if "labels" not in own:
            raise ValueError(f"{name} has no labels; needed are {WANTED}")
        labels.append(_labels(own["labels"], arrays[own["labels"]]))
        groups += _groups(arrays[own["groups"]]) if "groups" in own else [""] * count
        splits += [split] * count
        paths += [f"{path}/{name}/{row}" for row in range(count)]
    if len({array.shape[1:] for array in pixels}) > 1:
        raise ValueError(f"images of several shapes: {', '.join(map(str, pixels))}")
    values = np.concatenate(labels).tolist()
    _, num_train, num_test, num_val = splits_in_order(splits)  # keys are in this order
    given, more = without_blanks(_class_names(arrays.get("class_names")))
    notes = [*more]
    if isinstance(values[0], str):
        values, more = without_blanks(values)
        notes += more
        if given:
            notes.append("note: class_names is not used, because the labels are names themselves")
    names, numbers = _classes(values, values[:num_train], given)
    used = {"class_names"}.union(*(own.values() for own in keys.values()))
    return PictureFolder(
        root=path,
        class_names=names,
        paths=paths,
        labels=numbers,
        groups=tuple(groups) if any(groups) else (),
        arrays=tuple(pixels),
        num_train=num_train,
        num_test=num_test,
        num_val=num_val,
        facts=facts,
        notes=tuple(notes + not_used(path, [name for name in arrays if name not in used])),
    )


def _classes(
    values: Sequence[int | str], trained: Sequence[int | str], given: Sequence[str]
) -> tuple[tuple[str, ...], list[int]]:
    known = in_order({*trained})
    if strange := sorted({*values} - {*known}):
        raise ValueError(f"class {strange[0]!r} has no training image")
    if len(known) < 2:
        raise ValueError(f"{quantity(len(known), 'class')}; two are needed")
    if isinstance(known[0], int) and known != [*range(len(given) or len(known))]:
        count = quantity(len(given) or len(known), "class")
        raise ValueError(f"labels of {count} must be all numbers from 0, not {known[:9]}")
    number = {value: label for label, value in enumerate(known)}
    names = given if isinstance(known[0], int) and given else map(str, known)
    refuse_names(names := [*map(composed, names)])
    return tuple(names), [number[value] for value in values]


def _labels(name: str, array: Array) -> np.ndarray:
    values = _whole(array)
    if values.dtype.kind not in "iuU" or values.size != len(values):
        raise ValueError(
            f"{name} is {values.dtype} {values.shape}; needed are integers or texts, one an image"
        )
    # numpy has no integers for int64 and uint64 together
    return values.reshape(-1).astype(values.dtype if values.dtype.kind == "U" else np.int64)


def _groups(array: Array) -> list[str]:
    values = _whole(array)
    if values.size != len(values):
        raise ValueError(f"groups are {values.dtype} {values.shape}; needed is one an image")
    return [str(group) for group in values.reshape(-1).tolist()]


def _class_names(array: Array | None) -> list[str]:
    if array is None or array.shape == (0,):
        return []
    if array.dtype.kind not in "US" or len(array.shape) != 1:
        raise ValueError(f"class_names is {array.dtype} {array.shape}; needed are texts, (K,)")
    return [str(name) for name in _whole(array)]


def _whole(array: Array) -> np.ndarray:
    """Return all values of an array; bytes are UTF-8."""
    if array.nbytes > MOST_LABEL_BYTES or not array.shape:
        raise ValueError(f"labels, groups or names of {array.nbytes:,} bytes, {array.shape}")
    if isinstance(array, np.ndarray):
        whole = array
    else:
        whole = np.concatenate([*array.parts(2**20), np.empty((0, *array.shape[1:]), array.dtype)])
        if whole.dtype.kind == "U":  # a text of other code points raises ValueError
            whole.astype(whole.dtype.newbyteorder("<")).tobytes().decode("utf-32-le")
    return np.char.decode(whole, "utf-8") if whole.dtype.kind == "S" else whole


def _digest(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.shape} {array.dtype}".encode())
        values = np.ascontiguousarray(array)
        values = values.astype(str) if values.dtype.hasobject else values
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def data_of_arrays(
    name: str,
    splits: Mapping[str, tuple[Any, Any] | None],
    class_names: Sequence[str],
    on_message: Listener,
) -> DataSet:
    arrays: dict[str, Array] = {
        "class_names": np.asarray(() if class_names is None else class_names)
    }
    given = {split: pair for split, pair in splits.items() if pair is not None}
    for split, (images, labels) in given.items():
        arrays |= {f"{split}_images": np.asarray(images), f"{split}_labels": np.asarray(labels)}
    folder = list_arrays(Path(name), arrays, name)
    images_of, first, seen = dict[str, Any](), 0, Seen()
    for split, images in zip(given, folder.arrays, strict=True):
        labels = torch.tensor(folder.labels[first : first + images.shape[0]])
        pixels = torch.cat([*images.parts(PORTION, seen=seen)]).contiguous()
        images_of[split] = Images(pixels, labels)
        first += images.shape[0]
    data = replace(arranged(folder.class_names, **images_of), name=name)
    for note in (*folder.notes, *notes_on_names(folder.class_names)):
        on_message(note)
    for note, fields in notes_on(seen).items():
        white = fields.get("data.levels")
        scale = f"scale them: (images * (255 / {white})).round().astype('uint8')"
        advice = scale if white else "give all images one unit"
        on_message(f"{note.partition(';')[0]}; {advice}")
    learned = {*pixel_digests(data.train.pixels)}
    if copies := sum(digest in learned for digest in pixel_digests(data.test.pixels)):
        count = quantity(copies, "test image")
        on_message(f"note: {count} found in train, too; the test accuracy is too high")
    return data


class ImageArray:
    """Images in an array, as (N, C, H, W) uint8; 16 bits are scaled by ``data.levels``.

    The shorter of the second and the last axis holds the channels; the last one if they are equal.
    """

    def __init__(self, name: str, array: Array) -> None:
        self.name, self.array = name, array
        shape = array.shape if len(array.shape) != 3 else (*array.shape, 1)
        if array.dtype.kind != "u" or array.dtype.itemsize > 2 or len(shape) != 4 or 0 in shape:
            raise ValueError(
                f"{name} is {array.dtype} {array.shape}; needed are uint8 or uint16, (N, H, W),"
                " (N, H, W, C) or (N, C, H, W); of values from 0 to 255, save"
                " images.astype('uint8'), from 0 to 1, (255 * images).round().astype('uint8')"
            )
        self.is_last = shape[3] <= shape[1]
        self.is_wide = array.dtype.itemsize == 2
        count, *rest = (shape[0], shape[3], *shape[1:3]) if self.is_last else shape
        self.shape = (count, rest[0], rest[1], rest[2])
        if rest[0] > MOST_CHANNELS:
            raise ValueError(f"{name} {array.shape}: {rest[0]} channels, at most {MOST_CHANNELS}")
        if rest[1] * rest[2] > MAX_PIXELS:
            most = f"more than {MAX_PIXELS // 10**6} megapixels an image"
            raise ValueError(f"{name} {array.shape}: {most}; save smaller ones")
        self._most = max(1, MAX_BYTES // (math.prod(rest) * array.dtype.itemsize))
        """Number of images that are read at a time, so that large ones do not fill the memory."""

    def __str__(self) -> str:
        return f"{self.name} {self.array.shape}"

    def raw(self, count: int) -> Iterator[np.ndarray]:
        """Yield up to ``count`` images at a time, as they are stored."""
        array, count = self.array, min(count, self._most)
        if isinstance(array, NpzArray):
            return array.parts(count)
        return iter(np.split(array, range(count, len(array), count)))

    def parts(
        self, count: int, levels: tuple[float, float] | None = None, seen: Seen | None = None
    ) -> Iterator[Tensor]:
        """Yield up to ``count`` images at a time, (n, C, H, W) uint8; see ``decode``."""
        for part in self.raw(count):
            if self.is_wide:
                if seen is not None:
                    seen += [step for image in part for step in finer_values(image, levels)]
                    highs = [image.max().item() for image in part]
                    seen += [] if levels else [("grey", high) for high in highs]
                    seen += [("high", high, str(self)) for high in highs]
                try:
                    part = np.stack([scaled(image, levels) for image in part])
                except RefusedError as error:
                    raise InputError(f"{self}: an image: {error}") from error
                if seen is not None:
                    seen += [("top", image.max().item()) for image in part]
            tensor = torch.from_numpy(np.ascontiguousarray(part))
            tensor = tensor[..., None] if tensor.ndim == 3 else tensor
            yield tensor.permute(0, 3, 1, 2) if self.is_last else tensor
