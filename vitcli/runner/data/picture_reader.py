"""The user's own pictures: listed by the row of their prefix, decoded, checked and corrected.

Axes: N images, C channels, H W pixels.
"""

import contextlib
import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vitcli import plugin
from vitcli.core.data.source import DataSet, Images, together
from vitcli.core.spec import DATA_READERS, DataSpec
from vitcli.core.spec.data import MOST_PAGES
from vitcli.core.spec.own import OwnPartError
from vitcli.plugin import commands, load_target
from vitcli.runner.data import arrays
from vitcli.runner.data.cache import Decoded, array_file, load_or_build
from vitcli.runner.data.catalogue import IN_CHANS, DataInfo
from vitcli.runner.data.corrections import apply_corrections, describe_corrections, read_corrections
from vitcli.runner.data.deep import (
    RefusedError,
    Seen,
    depth_fields,
    notes_on,
    remarks_on,
)
from vitcli.runner.data.extras import images_by_class, read_extras
from vitcli.runner.data.find import own_path
from vitcli.runner.data.folds import (
    MOST_COMPARED,
    except_in,
    hold_out_fold,
    hold_out_groups,
    keep_sides,
)
from vitcli.runner.data.formats.npz import list_arrays
from vitcli.runner.data.labels import notes_on_names, notes_on_pairs, same_group
from vitcli.runner.data.listing import PictureFolder, divided, group_of
from vitcli.runner.data.near_copies import (
    MOST_PAIRS,
    content_digests,
    exact_copies,
    near_copies,
    without_bars,
)
from vitcli.runner.data.pictures import (
    UNSET,
    can_read_heic,
    decode,
    num_pages,
    picture_bytes,
    picture_size,
    quiet_pillow,
)
from vitcli.runner.errors import ConfigError, InputError, require_packages
from vitcli.runner.text import Listener, listed, percent, printable, quantity

Read = TypeVar("Read")
DEFAULT_SIZE = (32, 32)
LARGEST = 1024
REPORT_SECONDS = 5.0
LARGE_FILE = 32_768
NUM_FOLDS = 5
TEST_SHARE = 1 / NUM_FOLDS
MOST_LOST = 0.1
"""Share of the area above which a note says how much a crop keeps."""
NUM_MEASURED = 500
"""Number of pictures of which that share is measured."""
AT_ONCE = 256
NUM_SHOWN, NUM_NAMED = 3, 10
CONTENT = 16
"""Number of hexadecimal digits that tell a picture from others by its content."""
SAME = {
    "copies": (("test",), "test pictures found in train, too; the test accuracy is too high"),
    "near": (
        ("test",),
        "test pictures look like a training picture (turned, resized, cut or saved again); if they"
        " are the same, the test accuracy is too high",
    ),
    "twins": (("train", "test", "val"), "pictures found in another class, too"),
    "val": (
        ("val",),
        "validation pictures found in train or test, too; their accuracy is too high",
    ),
}
"""Kind of a pair of pictures that look the same -> the splits of the first, and what is wrong."""
Pairs = dict[str, list[tuple[str, str]]]
"""Row of ``SAME`` -> the names of the pairs."""
Digests = Sequence[tuple[bytes, str]]


# Any picture files


def _each(
    read: Callable[[str], Read], paths: Sequence[str]
) -> Generator[Read | InputError, None, None]:
    """Yield what ``read`` returns for each path, in order, or its error.

    Large pictures are read on several threads. For small ones, Python's lock dominates: measured on
    2 cores with 32x32 PNG files, 0.22 ms per picture in one thread, 0.27 ms in two.
    """

    def attempt(path: str) -> Read | InputError:
        try:
            return read(path)
        except InputError as error:
            return error

    sample = paths[:: max(1, len(paths) // 100)]
    sizes = [os.path.getsize(path) for path in sample if os.path.isfile(path)]
    mean = sum(sizes) / max(1, len(sizes))
    with quiet_pillow():
        if mean <= LARGE_FILE:
            yield from map(attempt, paths)
            return
        pool = ThreadPoolExecutor(torch.get_num_threads())
        try:
            yield from pool.map(attempt, paths)
        finally:
            pool.shutdown(cancel_futures=True)


def read_each(
    paths: Sequence[str],
    size: arrays.Size,
    in_chans: int,
    data: DataSpec = UNSET,
    seen: Seen | None = None,
) -> Generator[Tensor | InputError, None, None]:
    """Yield each picture as (in_chans, *size) uint8; a picture that cannot be read is an error.

    Close the generator, or read it to its end: until then, Pillow's warnings are not shown.
    """
    return _each(lambda path: decode(picture_bytes(path), path, size, in_chans, data, seen), paths)


def sizes_of(folder: PictureFolder) -> Iterator[arrays.Size]:
    for array in folder.arrays:
        yield from repeat((array.shape[2], array.shape[3]), array.shape[0])
    if folder.arrays:
        return
    read = partial(picture_size, page=folder.data.page or 0)
    with contextlib.closing(_each(read, folder.paths)) as sizes:
        for size in sizes:
            if not isinstance(size, InputError):  # reported when the pictures are read
                yield size


def kept_area(sizes: Mapping[arrays.Size, int], target: arrays.Size) -> float:
    """Return the mean share of the area that a crop keeps; ``sizes`` counts the pictures."""
    boxes = {size: arrays.central_box(*size, target) for size in sizes}
    kept = (n * boxes[h, w][2] * boxes[h, w][3] / (h * w) for (h, w), n in sizes.items())
    return sum(kept) / sum(sizes.values())


def natural_size(sizes: Iterable[arrays.Size]) -> arrays.Size:
    """Return the common size of pictures up to 1024x1024; otherwise 32x32."""
    common: arrays.Size | None = None
    for size in sizes:
        common = common or size
        if size != common:
            return DEFAULT_SIZE
    return common if common and max(common) <= LARGEST else DEFAULT_SIZE


# The pictures of a folder


def read_labelled(
    folder: PictureFolder,
    size: arrays.Size,
    in_chans: int,
    on_message: Listener,
    seen: Seen | None = None,
) -> tuple[Images, dict[int, str]]:
    """Decode all pictures of a folder to (N, in_chans, *size) uint8, as ``folder.data`` says.

    ``seen`` gets what the files hold beyond that. Returns also the name and the reason of each that
    cannot be read, by its index. Its pixels are undefined.
    """
    labels = torch.tensor(folder.labels, dtype=torch.int64)
    if folder.arrays:
        pixels, done = torch.empty(len(labels), in_chans, *size, dtype=torch.uint8), 0
        parts = (array.parts(AT_ONCE, folder.data.levels, seen) for array in folder.arrays)
        for part in chain.from_iterable(parts):
            pixels[done : done + len(part)] = arrays.fitted(part, size, folder.data.fit)
            done += len(part)
        return Images(pixels, labels, names=folder.names), {}
    paths, failures, reported = folder.paths, dict[int, str](), time.monotonic()
    pixels = torch.empty(len(paths), in_chans, *size, dtype=torch.uint8)
    with contextlib.closing(read_each(paths, size, in_chans, folder.data, seen)) as pictures:
        for row, picture in enumerate(pictures):
            if isinstance(picture, InputError):
                reason = str(picture).removeprefix(f"{printable(paths[row])}: ")
                failures[row] = f"{folder.names[row]}: {reason}"
                if seen is not None and isinstance(picture.__cause__, RefusedError):
                    seen += [("range", level) for level in picture.__cause__.levels]
            else:
                pixels[row] = picture
            if time.monotonic() - reported > REPORT_SECONDS:
                reported = time.monotonic()
                on_message(f"reading pictures: {row + 1:,} of {len(paths):,}")
    return Images(pixels, labels, names=folder.names), failures


def read_folder(
    folder: PictureFolder, spec: DataSpec, groups: Mapping[str, str], on_message: Listener
) -> Decoded:
    """Read and check the pictures of a folder. Without a test set, a fifth of them is held out.

    The split depends on the readable files only. So it stays the same if the others are deleted.
    ``groups`` are those of ``group_of``.
    """
    total, size = len(folder.paths), spec.resize or natural_size(sizes_of(folder))
    on_message(f"reading {total:,} pictures from {printable(folder.root)}")
    arrays.require_memory(total, folder.in_chans, size)
    seen = Seen()
    images, failures = read_labelled(folder, size, folder.in_chans, on_message, seen)
    for note in remarks_on(seen):
        on_message(note)
    unreadable = tuple(failures.values())
    if not spec.skip_bad:
        refuse_unreadable(folder, unreadable)
    digests = content_digests(folder, failures)
    images = with_boxes(images, folder, size, digests)
    train, test, val, same, unlinked = split_folder(folder, images, digests, groups)
    rows = [*train, *test, *val]
    paths = [folder.paths[row] for row in rows]
    extra, reasons = read_extras(folder.root, folder.extra_files, paths)
    extra |= {kind: numbers[torch.tensor(rows)] for kind, numbers in folder.extra.items()}
    whole, cut, end = replace(images[torch.tensor(rows)], extra=extra), len(train), len(rows)
    parts = whole[:cut], whole[cut : end - len(val)]
    data = arrays.arranged(folder.class_names, *parts, val=whole[end - len(val) :] if val else None)
    data = replace(data, contents=contents_of(folder, digests))
    step = max(1, len(paths) // NUM_MEASURED)
    sample = sizes_of(replace(folder, paths=paths[::step]))
    kept = kept_area(Counter(sample), size) if spec.fit == "crop" else 1.0
    return Decoded(data, unreadable, same, kept, notes_on(seen), reasons, tuple(unlinked))


def with_boxes(
    images: Images, folder: PictureFolder, size: arrays.Size, rows: Collection[int]
) -> Images:
    """Return the images with the box that each fills if it has bars; ``rows`` are readable."""
    if folder.data.fit == "pad":
        readable = replace(folder, paths=[folder.paths[row] for row in rows])
        sizes = dict(zip(rows, sizes_of(readable), strict=True))
        boxes = [arrays.central_box(*size, sizes.get(row, size)) for row in range(len(images))]
        if {*boxes} - {(0, 0, *size)}:
            return replace(images, shown=torch.tensor(boxes))
    return images


def refuse_unreadable(
    folder: PictureFolder,
    unreadable: Sequence[str],
    hint: str = "Repair or remove them, or train without them: --skip-bad, and in a study"
    " -s data.skip_bad=true",
) -> None:
    if unreadable:
        raise InputError(
            f"{len(unreadable):,} of {len(folder.paths):,} pictures in {printable(folder.root)}"
            f" cannot be read:\n{listed(unreadable)}\n{hint}"
        )


def contents_of(folder: PictureFolder, digests: Mapping[int, bytes]) -> dict[str, str]:
    """Return what tells each picture from others, by its name: by ``content_digests``.

    Of 16 bits in arrays, these are of 256 levels, in which dark pictures may be equal, and change
    with ``data.levels``; so the values that are stored are taken.
    """
    if any(array.is_wide for array in folder.arrays):
        stored = (part for array in folder.arrays for part in array.raw(AT_ONCE))
        values = (image.tobytes() for part in stored for image in part)
        digests = dict(enumerate(hashlib.sha256(value).digest() for value in values))
    return {folder.names[row]: digest.hex()[:CONTENT] for row, digest in digests.items()}


def split_folder(
    folder: PictureFolder, images: Images, digests: Mapping[int, bytes], groups: Mapping[str, str]
) -> tuple[list[int], list[int], list[int], Pairs, list[str]]:
    """Return the indices of training, test and validation pictures, those that look the same, and
    the classes that it unlinks.

    ``digests`` are those of ``content_digests``. If pictures that would be held out look like
    training pictures, whatever their colours, or copies make a fifth uneven, ``hold_out_fold``
    chooses others.
    """
    end = len(folder.paths) - folder.num_val
    readable, val = (
        [row for row in rows if row in digests]
        for rows in (range(end), range(end, len(folder.paths)))
    )
    train, test = _splits(folder, readable, digests)
    if folder.num_val and not val:
        raise _nothing_left(folder, "the validation set")
    parts = parts_of(images, train, test, val)
    same = same_pictures(*parts)
    uneven, unlinked = notes_on_fifth(folder.class_names, *parts[:2]), list[str]()
    has_fifth = folder.num_test is None
    is_divided = has_fifth and bool(
        not groups and (same["copies"] or same["near"] or _near(*parts[:2], in_colour=False))
    )
    if has_fifth and (groups or uneven or is_divided):
        known, divided = images[torch.tensor(readable)], None
        if groups:
            contents = [digests[row] for row in readable]
            divided = hold_out_groups(known, TEST_SHARE, groups, contents)
        else:
            with contextlib.suppress(InputError):
                named = contents_of(folder, digests)
                may_be_short = bool(same["copies"]) or (is_divided and len(known) <= MOST_COMPARED)
                divided, unlinked = hold_out_fold(
                    known, folder.class_names, NUM_FOLDS, named, may_be_short=may_be_short
                )
        if divided is not None:
            sides = zip(readable, divided.tolist(), strict=True)
            test = [row for row, is_test in sides if is_test]
            train = sorted({*readable} - {*test})
            same = same_pictures(*parts_of(images, train, test, val))
    return train, test, val, same, unlinked


def _splits(
    folder: PictureFolder, readable: Sequence[int], digests: Mapping[int, bytes]
) -> tuple[list[int], list[int]]:
    train = [row for row in readable if row < folder.num_train]
    test = [row for row in readable if row >= folder.num_train]
    lost = {*folder.labels[: folder.num_train]} - {folder.labels[row] for row in train}
    if lost or (folder.num_test is not None and not test):
        what = f"class {folder.class_names[min(lost)]!r}" if lost else "the test set"
        raise _nothing_left(folder, what)
    if folder.num_test is None:
        train, test = _split_by_content(folder, train, digests)
    if not test:
        raise InputError(f"{printable(folder.root)}: too few pictures to hold some out for testing")
    return train, test


def _nothing_left(folder: PictureFolder, what: str) -> InputError:
    return InputError(f"{printable(folder.root)}: no picture of {printable(what)} can be read")


def _split_by_content(
    folder: PictureFolder, rows: Sequence[int], digests: Mapping[int, bytes]
) -> tuple[list[int], list[int]]:
    """Split into (train, test), with a fifth of each class in test, by ``content_digests``.

    The split does not depend on file names or on the size at which pictures are read. Identical
    files stay on the same side. A class with one file stays in train.
    """
    by_class: dict[int, dict[bytes, list[int]]] = {}
    for row in rows:
        by_class.setdefault(folder.labels[row], {}).setdefault(digests[row], []).append(row)
    train, test = list[int](), list[int]()
    for by_digest in by_class.values():
        share = max(1, round(TEST_SHARE * len(by_digest))) if len(by_digest) > 1 else 0
        for rank, digest in enumerate(sorted(by_digest)):
            (test if rank < share else train).extend(by_digest[digest])
    return train, test


def notes_on_fifth(
    class_names: Sequence[str], train: Images, test: Images, unlinked: Sequence[str] = ()
) -> list[str]:
    """Return a note if less than half or more than twice a fifth of a class is held out, and one on
    the classes that are ``unlinked``.
    """
    held = Counter(test.labels.tolist())
    uneven = [
        f"{held[label]:,} of {total:,} pictures of {printable(class_names[label])!r}"
        for label, total in sorted((held + Counter(train.labels.tolist())).items())
        if not TEST_SHARE * total // 2 <= held[label] <= max(1, 2 * TEST_SHARE * total)
    ]
    note = (
        "note: not a fifth of each class is held out for testing, because pictures that look alike"
        " or are of one group stay on one side; make a folder 'test' with other pictures, or test"
        f" all in turn (-s data.folds=5):\n{listed(uneven, NUM_SHOWN)}"
    )
    alike = (
        f"note: pictures that look alike are on one side{except_in(unlinked)}; make a folder 'test'"
        " with other pictures, or the test accuracy is too high"
    )
    return [note] * bool(uneven) + [alike] * bool(unlinked)


def same_pictures(train: Images, test: Images, val: Images | None) -> Pairs:
    """Return the names of pairs of pictures that look the same, by their row of ``SAME``."""
    named = [*map(_digests, (test, train, val))]
    first, twins = dict[bytes, dict[int, str]](), list[tuple[str, str]]()
    labels = [label for part in (train, test, val) if part for label in part.labels.tolist()]
    rows = [*zip([*named[1], *named[0], *named[2]], labels, strict=True)]
    for (digest, name), label in rows:
        first.setdefault(digest, {}).setdefault(label, name)
    for (digest, name), label in rows:  # also a second copy in the class of the first one
        others = [other for its_label, other in first[digest].items() if its_label != label]
        if others and name != next(iter(first[digest].values())):
            twins.append((name, others[0]))
    copies = _copies(*named)
    exact = {name for name, _ in copies["copies"]}
    pairs = ((test.names[a], train.names[b]) for a, b in _near(train, test, in_colour=True))
    return {**copies, "near": [pair for pair in pairs if pair[0] not in exact], "twins": twins}


def _copies(test: Digests, train: Digests, val: Digests) -> Pairs:
    return {"copies": exact_copies(test, train), "val": exact_copies(val, [*train, *test])}


def _digests(part: Images | None) -> Digests:
    return [*zip(arrays.pixel_digests(part.pixels), part.names, strict=True)] if part else []


def _near(train: Images, test: Images, *, in_colour: bool) -> list[tuple[int, int]]:
    """Return the test pictures that look like a training picture; none of too many pictures."""
    if len(train) * len(test) > MOST_PAIRS:
        return []
    labels = test.labels, train.labels
    return near_copies(without_bars(test), without_bars(train), labels, in_colour=in_colour)


def parts_of(images: Images, *parts: Sequence[int]) -> tuple[Images, Images, Images | None]:
    """Return the images at the indices of training, test and validation pictures."""
    train, test, val = (images[torch.tensor(rows, dtype=torch.long)] for rows in parts)
    return train, test, val if len(val) else None


def keep_split(
    folder: PictureFolder,
    decoded: Decoded,
    kept: Mapping[str, str],
    groups: Mapping[str, str],
    out: Collection[str],
    on_message: Listener,
) -> tuple[Decoded, Mapping[str, str]]:
    """Return the pictures on the sides of ``kept``, by content, and the side that each keeps.

    A test set of the folder itself stays as it is. Those that are left ``out`` are not counted.
    """
    data, is_given = decoded.data, folder.num_test is not None
    if not kept:
        return decoded, {}
    whole = data.train if is_given else together(data.train, data.test)
    known = {name: kept[content] for name, content in data.contents.items() if content in kept}
    sides, is_test = keep_sides(whole, known, {*data.test.names}, groups)
    old = Counter(bool(side) for name, side in sides.items() if name not in out)
    count = quantity(old.total(), "training picture" if is_given else "picture")
    on_message(
        f"{printable(folder.root)}: {old[True]:,} of {count} stay in the split of an earlier run;"
        f" {old[False]:,} new ones are divided"
    )
    for note in notes_on_absent(kept, data.contents):
        on_message(note)
    train, test = whole[~is_test], whole[is_test]
    if is_given or {*test.names} == {*data.test.names}:
        return decoded, sides
    if lost := {*whole.labels.tolist()} - {*train.labels.tolist()}:
        raise InputError(
            f"{printable(folder.root)}: every picture of {printable(data.class_names[min(lost)])}"
            " was a test picture of the earlier run; add others, or train without --init"
        )
    arranged = arrays.arranged(data.class_names, train, test, val=data.val)
    same = same_pictures(arranged.train, arranged.test, arranged.val)
    return replace(decoded, data=replace(arranged, contents=data.contents), same=same), sides


def notes_on_absent(kept: Mapping[str, str], contents: Mapping[str, str]) -> list[str]:
    """Return a note if pictures of an earlier run are not here: their look-alikes are not found."""
    if not (absent := len(kept.keys() - {*contents.values()})):
        return []
    return [
        f"note: {quantity(absent, 'picture')} of the earlier run {'is' if absent == 1 else 'are'}"
        " not here. A picture that looks like one of them cannot be found: it may be tested on,"
        " though the run has learned its copy. Keep old and new pictures in one folder"
    ]


def describe_problems(decoded: Decoded, data: DataSet) -> list[str]:
    label: dict[str, int] = {}
    for images in filter(None, (data.train, data.test, data.val)):
        label |= zip(images.names, images.labels.tolist(), strict=True)
    notes = list[str]()
    for split, part in {"test": data.test, "validation": data.val}.items():
        if part is not None:
            counts = images_by_class(part.extra, part.labels, data.num_classes)
            lacking = [n for n, count in zip(data.class_names, counts, strict=True) if not count]
            some, others = lacking[:NUM_NAMED], len(lacking) - NUM_NAMED
            notes += [f"note: no {split} picture of {printable(name)!r}" for name in some]
            notes += [f"note: nor of {quantity(others, 'other class')}"] * (others > 0)
    if decoded.kept_area < 1 - MOST_LOST:
        height, width = data.img_size
        notes.append(
            f"note: the crop to {height}x{width} keeps {percent(decoded.kept_area, 0)} of a"
            " picture's area on average; --fit pad shows whole pictures (data.fit)"
        )
    notes += decoded.notes
    if max(data.mean) < 1 / 255 and not decoded.notes:
        notes.append("note: the pictures are nearly black; save values from 0 to 255 with 8 bits")
    if bad := decoded.unreadable:
        parts = (decoded.data.train, decoded.data.test, decoded.data.val or ())
        total = sum(map(len, parts)) + len(bad)
        what = f"{len(bad):,} of {total:,} pictures left out, because they cannot be read"
        notes.append(f"note: {what}:\n{listed(bad, NUM_SHOWN)}")
    for row, (splits, what) in SAME.items():
        pairs = [
            f"{a} = {b}"
            for a, b in decoded.same.get(row, ())
            if {a, b} <= label.keys() and (row != "twins" or label[a] != label[b])
        ]
        if pairs:
            total = sum(len(getattr(data, split) or ()) for split in splits)
            count = f"{len(pairs):,} of {total:,}"
            has_more = row == "near" and "data check" in commands()
            more = "; 'vitcli data check' looks for more" if has_more else ""
            notes.append(f"note: {count} {what}{more}:\n{listed(pairs, NUM_SHOWN)}")
    return notes


def read_own(
    spec: DataSpec,
    data_dir: Path | None,
    extras: Collection[str],
    kept: Mapping[str, str],
    on_message: Listener,
) -> tuple[DataSet, Mapping[str, str], bool]:
    """Return the user's own pictures, their kept sides, and whether they have no test set of their
    own.

    The corrections are made after that, so they move no picture into the test set or out of it.
    """
    folder = listed_for(spec, data_dir)
    groups = group_of(folder, spec.group)
    for note in folder.notes:
        on_message(note)
    corrections = read_corrections(spec.corrections, folder)

    more = (folder.num_val, sorted(groups.items())) if folder.num_val or groups else ()
    depth = depth_fields(spec).items()
    parts = (folder.stamp, folder.class_names, can_read_heic(), spec.fit, *more, *depth)
    file = array_file(spec.name, spec.resize, data_dir)
    build = partial(read_folder, folder, spec, groups, on_message)
    decoded = load_or_build(file, parts, build, on_message)
    if not spec.skip_bad:
        refuse_unreadable(folder, decoded.unreadable)
    for kind, reason in decoded.unusable_extras.items():
        if kind in extras:
            raise InputError(reason)
        on_message(f"note: {kind}s are not used: {reason.splitlines()[0].rstrip(':')}")
    if spec.folds:  # they keep pictures that look alike on one side
        decoded = replace(decoded, same={"twins": decoded.same["twins"]})
    kept, out = {} if spec.folds else kept, {n for n, label in corrections.items() if label is None}
    decoded, sides = keep_split(folder, decoded, kept, groups, out, on_message)
    data, where = decoded.data, printable(folder.root)
    if corrections:
        data = apply_corrections(data, corrections)
        copies = _copies(*map(_digests, (data.test, data.train, data.val)))  # others may be left
        decoded = replace(decoded, same={**decoded.same, **copies})
        on_message(describe_corrections(corrections, spec.corrections, folder))
    if spec.resize is None:
        height, width = data.img_size
        on_message(f"{where}: read at {height}x{width}; another size: -s data.resize=N")
    notes = describe_problems(decoded, data)
    if folder.num_test is None and not spec.folds:
        counts = f"{len(data.test):,} of its {len(data.train) + len(data.test):,} pictures"
        on_message(f"{where}: {counts} are held out for testing (no test folder)")
        unlinked = () if sides else decoded.unlinked
        notes = notes_on_fifth(data.class_names, data.train, data.test, unlinked) + notes
    for note in notes:
        on_message(note)
    leaks = () if spec.folds else _leaks(decoded, data, groups)
    return replace(data, leaks=leaks, groups=groups), sides, folder.num_test is None


def _leaks(decoded: Decoded, data: DataSet, groups: Mapping[str, str]) -> tuple[str, ...]:
    held_out = [*data.test.names, *(data.val.names if data.val else ())]
    left = {*data.train.names, *held_out}
    found = [pair for row in ("copies", "val") for pair in decoded.same.get(row, ())]
    copies = [f"{a} = {b}" for a, b in found if {a, b} <= left]
    pairs = divided(held_out, data.train.names, groups)
    return (*copies, *(f"{a} and {b} (group {printable(groups[a])!r})" for a, b in pairs))


def list_pictures(name: str, data_dir: Path | None = None) -> PictureFolder:
    prefix = name.partition(":")[0]
    row, path = DATA_READERS[prefix], own_path(name, data_dir)
    require_packages(f"{prefix}:", row.packages, "hub")
    with plugin.guard(row.source) if row.source else contextlib.nullcontext():
        folder = load_target(row.build)(path if row.is_path else str(path))
    if not isinstance(folder, PictureFolder):
        place = Path(str(path) if row.is_path else name)
        if not isinstance(folder, Mapping):
            what = f"returned {type(folder).__name__}; needed are arrays by name, such as"
            raise OwnPartError(row.build, f"{what} {{'images': images, 'labels': labels}}")
        folder = list_arrays(place, {key: np.asarray(folder[key]) for key in folder})
    groups = sorted({*map(same_group, folder.groups)} - {""})
    notes = [*notes_on_names(folder.class_names), *notes_on_pairs(groups, "groups", "group")]
    if empty := sorted({group for group in folder.groups if group and not same_group(group)}):
        notes.append(f"note: pictures with the group {printable(empty[0])!r} are in no group")
    return replace(folder, notes=(*folder.notes, *notes))


def listed_for(spec: DataSpec, data_dir: Path | None = None) -> PictureFolder:
    """Return the pictures that a spec asks for: its own validation split only if it is wanted."""
    folder = read_as(spec, list_pictures(spec.name, data_dir))
    wanted = spec.val_split == folder.num_val or 0 < spec.val_split < 1
    if not folder.num_val or (wanted and not spec.folds):
        return folder
    note = (
        f"{printable(folder.root)}: {folder.num_val:,} validation pictures are not used; to use"
        f" them, type: -s data.val_split={folder.num_val}"
    )
    return replace(folder.without_val(), notes=(*folder.notes, note))


def read_as(spec: DataSpec, folder: PictureFolder) -> PictureFolder:
    """Return a folder whose pictures are read as a spec says, with the number of their channels."""
    if folder.arrays and (spec.page is not None or spec.channels is not None):
        field = "page" if spec.channels is None else "channels"
        raise ConfigError(f"data.{field}: for picture files; {spec.name} has arrays: leave it out")
    if spec.channels == "pages":
        with contextlib.closing(_each(num_pages, folder.paths)) as counts:
            count = next((count for count in counts if isinstance(count, int)), IN_CHANS)
    elif isinstance(spec.channels, tuple):
        count = len(spec.channels)
    else:
        count = 1 if spec.channels == "grey" else IN_CHANS
    if count > MOST_PAGES:
        raise ConfigError(
            f"data.channels: {count} pages, at most {MOST_PAGES}; choose some, such as"
            " -s 'data.channels=[0,1,2]'"
        )
    return replace(folder, data=spec, file_chans=count)


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
