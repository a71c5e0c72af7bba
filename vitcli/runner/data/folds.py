"""Folds: all images are divided into equal parts; a run tests on one and trains on the others.

The run with seed s tests on part s % K of division s // K. So the seeds 0 to K - 1 test each image
once, and the next K seeds do so again with another division.

Axes: N images, C channels, H W pixels.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vitcli.core.data.source import DataSet, Images, together
from vitcli.runner.data.arrays import canonical_order, pixel_digests
from vitcli.runner.data.near_copies import near_copies, pairs_alike, without_bars
from vitcli.runner.errors import InputError
from vitcli.runner.files import sha256
from vitcli.runner.text import printable, quantity

MOST_COMPARED = 5000
"""Number of images above which none are looked for that look alike: each run would take long."""
MOST_ALIKE = 1_000_000
"""Number of images that look like one, in both orders, above which earlier versions lost some."""
Links = np.ndarray
"""Pairs of images, by their index, that are in one group: (P, 2)."""


def take_fold(
    data: DataSet,
    folds: int,
    seed: int,
    *,
    with_test: bool,
    groups: Mapping[str, str],
    known: Mapping[str, str],
) -> tuple[DataSet, dict[str, str], str]:
    """Return a data set whose test images are the part of a seed, sides that images keep, a note.

    Mean and standard deviation stay those of the whole data set. So does the hash, unless an
    earlier version divided the images otherwise. ``groups`` is the group of an image by its name; a
    group stays in one part. Images of ``known``, and those like them, are on its sides instead, see
    ``keep_sides``.
    """
    images = data.train
    if with_test:
        images = together(data.train, data.test)
        images = images[canonical_order(images)]
    number, part = divmod(seed, folds)
    linked, digests, unlinked, _ = found = linked_images(images, data.class_names, folds, groups)
    is_test = divide(linked, digests, images.labels.tolist(), folds, number) == part
    sides, text = dict[str, str](), ""
    if known:
        sides, is_test = keep_sides(images, known, {*images[is_test].names}, groups)
        if not is_test.any():
            raise InputError(
                f"fold {part + 1} of {folds}: the run has learned each of its pictures, or started"
                " from a run that has; add others"
            )
        old = sum(map(bool, sides.values()))
        text = f"; {old:,} of {quantity(len(sides), 'picture')} stay in the split of an earlier run"
    equal = _groups(digests, _pairs_in_groups(images, groups))
    if images.shown is not None:  # earlier versions compared the bars, too
        found = linked_images(replace(images, shown=None), data.class_names, folds, groups)
    before, _, cut, num_alike = found
    has_lost = len(images) + 2 * num_alike > MOST_ALIKE  # the most that one part of them could have
    if has_lost or (cut and before.max() < equal.max()):  # earlier versions divided otherwise
        data = replace(data, data_hash=sha256(repr((data.data_hash, cut)).encode()))
    if not np.array_equal(linked, before):
        data = replace(data, data_hash=sha256(repr((data.data_hash, "no bars")).encode()))
    unused = "" if with_test else f"; the {quantity(len(data.test), 'test image')} are not used"
    note = (
        f"fold {part + 1} of {folds} in division {number + 1} (seed {seed}):"
        f" {int(is_test.sum()):,} of {quantity(len(images), 'image')} for testing, the others for"
        f" training; copies {'and groups ' if groups else ''}are in the same fold"
        f"{except_in(unlinked)}{unused}{text}"
    )
    return replace(data, train=images[~is_test], test=images[is_test]), sides, note


def divide(
    groups: np.ndarray, digests: Sequence[bytes], labels: Sequence[int], folds: int, number: int
) -> Tensor:
    """Return the part of each image, from 0 to ``folds`` - 1: (N,).

    ``groups`` and ``digests`` are those of ``linked_images``; a group is in one part, and each
    class is spread evenly. Each ``number`` gives another division.
    """
    draws = [hashlib.sha256(b"%d " % number + digest).digest() for digest in digests]
    return spread(groups, labels, draws, folds)


def except_in(unlinked: Sequence[str]) -> str:
    """Return the end of a sentence on copies that stay together: in which classes some do not."""
    names = ", ".join(repr(printable(name)) for name in unlinked)
    return f", except some in {names}, where too few pictures look different" if unlinked else ""


def linked_images(
    images: Images,
    class_names: Sequence[str],
    folds: int,
    groups_of: Mapping[str, str],
    *,
    may_be_short: bool = False,
) -> tuple[np.ndarray, list[bytes], list[str], int]:
    """Return the number of each image's group, its digest, the classes unlinked, and how many pairs
    look alike.

    Images with the same pixels, or of one group of ``groups_of`` (name -> group), are in one group,
    and so are up to MOST_COMPARED images that look alike. But if so many look alike that a class
    has fewer groups than there are folds, this class is unlinked: its images that look alike may be
    in several groups. Where links to other classes are the reason, only those are cut.

    An InputError says which class has fewer groups even so, unless it ``may_be_short``.
    """
    digests, labels = pixel_digests(images.pixels), images.labels.tolist()
    given = _pairs_in_groups(images, groups_of)
    # Not in colour, because that would divide some data sets in another way than earlier versions:
    # a run of theirs would be measured on images that it has learned.
    alike = _pairs_alike(images, in_colour=False)
    equal = _groups(digests, given)
    fewest, label = fewest_groups(equal, labels)
    if fewest < folds and not may_be_short:
        different = quantity(fewest, "group" if len(given) else "different image")
        raise InputError(
            f"data.folds is {folds}, but class {class_names[label]!r} has only {different};"
            f" add some, or use fewer folds{f': -s data.folds={fewest}' * (fewest > 1)}"
        )
    kept, unlinked = _links_kept(alike, equal, np.array(labels), folds)
    names = [class_names[label] for label in sorted(unlinked)]
    return _groups(digests, kept, given), digests, names, len(alike)


def _links_kept(
    alike: Links, equal: np.ndarray, labels: np.ndarray, folds: int
) -> tuple[Links, set[int]]:
    """Return the links that leave each class ``folds`` groups, and the classes unlinked for that.

    ``equal`` is the group of each image without links, and ``labels`` its class: (N,). A class with
    too few groups without links keeps its own.
    """
    most = _groups_by_class(equal.tolist(), labels.tolist())

    def too_few(links: Links) -> list[int]:
        left = _groups_by_class(_groups(equal.tolist(), links).tolist(), labels.tolist())
        return [label for label, count in left.items() if count < folds <= most[label]]

    if not too_few(alike):
        return alike, set()
    first, second = labels[alike].T
    inside = too_few(alike[first == second])
    alike = alike[(first != second) | ~np.isin(first, inside)]
    across = too_few(alike)
    first, second = labels[alike].T
    alike = alike[(first == second) | ~np.isin([first, second], across).any(0)]
    by_equals = too_few(alike)  # linked by images of another class with the same pixels
    is_cut = np.isin(equal, equal[np.isin(labels, by_equals)])
    return alike[~is_cut[alike].any(1)], {*inside, *across, *by_equals}


def spread(groups: np.ndarray, labels: Sequence[int], draws: Sequence[bytes], folds: int) -> Tensor:
    """Return the part of each image, (N,): each class is spread evenly, and no group is divided.

    ``groups`` are numbers from 0; groups of one size are taken in the order of their ``draws``.
    """
    ends = np.cumsum(np.bincount(groups))[:-1]
    members = [rows.tolist() for rows in np.split(np.argsort(groups, kind="stable"), ends)]
    members.sort(key=lambda rows: (-len(rows), min(draws[row] for row in rows)))
    counts, parts = np.zeros((folds, max(labels) + 1), int), np.zeros(len(labels), int)
    for rows in members:  # to the part with the fewest images of these classes
        classes = [labels[row] for row in rows]
        part = min(range(folds), key=lambda k: (counts[k, classes].sum(), counts[k].sum()))
        np.add.at(counts[part], classes, 1)
        parts[rows] = part
    return torch.from_numpy(parts)


def hold_out_fold(
    images: Images,
    class_names: Sequence[str],
    folds: int,
    contents: Mapping[str, str],
    *,
    may_be_short: bool,
) -> tuple[Tensor, list[str]]:
    """Return whether each image is held out, about one of ``folds`` parts of each class, (N,) bool,
    and the classes that ``linked_images`` unlinks.

    It is the first part of ``divide``, or what ``hold_out_alike`` chooses if a group is larger than
    an even part of a class, because the first part has the largest group, or if a class has fewer
    groups than there are folds.
    """
    groups, digests, unlinked, _ = linked_images(
        images, class_names, folds, {}, may_be_short=may_be_short
    )
    labels = images.labels.tolist()
    sizes, totals = Counter(zip(groups.tolist(), labels, strict=True)), Counter(labels)
    is_short = fewest_groups(groups, labels)[0] < folds
    if is_short or any(n * folds >= totals[label] + folds for (_, label), n in sizes.items()):
        return hold_out_alike(images, groups, 1 / folds, contents), unlinked
    return divide(groups, digests, labels, folds, 0) == 0, unlinked


def hold_out_alike(
    images: Images, groups: np.ndarray, share: float, contents: Mapping[str, str]
) -> Tensor:
    """Return what ``hold_out_groups`` holds out of ``groups``, (N,), large ones last: (N,) bool.

    ``contents`` are those of the data set.
    """
    group_of = dict(zip(images.names, groups.tolist(), strict=True))
    last_first = sorted(images.names, key=contents.__getitem__, reverse=True)
    first = {group_of[name]: contents[name] for name in last_first}
    groups_of = {name: first[group] for name, group in group_of.items()}
    return hold_out_groups(images, share, groups_of, large_last=True)


def hold_out_groups(
    images: Images,
    share: float,
    groups_of: Mapping[str, str],
    contents: Sequence[bytes] = (),
    *,
    large_last: bool = False,
) -> Tensor:
    """Return whether each image is held out, about a share of each class: (N,) bool.

    Whole groups are held out, in an order that depends on their names, as long as that brings the
    classes nearer to their share. So a class of large groups gives more or less than its share. It
    gives at least its smallest group, if no class then loses all its images. ``contents`` are texts
    that order images in no group; their pixels depend on the size at which they are read. With
    ``large_last``, groups above the share of a class are held out only if the others give less.
    """
    digests = pixel_digests(images.pixels)
    groups = _groups(digests, _pairs_in_groups(images, groups_of))
    digests = [*(contents or digests)]
    for row, name in enumerate(images.names):
        if name in groups_of:  # not the pixels, which depend on the size at which they are read
            digests[row] = hashlib.sha256(groups_of[name].encode(errors="surrogateescape")).digest()
    counts = np.zeros((groups.max() + 1, int(images.labels.max()) + 1), int)
    np.add.at(counts, (groups, images.labels.numpy()), 1)
    first: dict[int, bytes] = {}
    for group, digest in zip(groups.tolist(), digests, strict=True):
        first[group] = min(digest, first.get(group, digest))
    total, out = counts.sum(0), np.zeros(len(counts), bool)
    is_late = large_last & (counts >= share * total + 1).any(1)
    held = np.zeros_like(total)

    def leaves_all(group: int) -> bool:
        return bool((held + counts[group] < total)[counts[group] > 0].all())

    for group in sorted(first, key=lambda group: (is_late[group], first[group])):
        more = held + counts[group]
        is_nearer = np.abs(more - share * total).sum() < np.abs(held - share * total).sum()
        if is_nearer and leaves_all(group):
            out[group], held = True, more
    for label in np.flatnonzero(total):
        own = [group for group in np.flatnonzero(counts[:, label]).tolist() if leaves_all(group)]
        if own and not held[label]:
            smallest = min(own, key=lambda group: counts[group].sum())
            out[smallest], held = True, held + counts[smallest]
    if not out.any():
        raise InputError(
            "data.group: no group can be held out, because a class would lose all its training"
            " pictures; add groups to the classes"
        )
    return torch.from_numpy(out[groups])


def alike_together(
    train: Images, val: Images, class_names: Sequence[str], contents: Mapping[str, str]
) -> Images:
    """Return ``val``, or about as many others of both if some of them look like training images.

    Then images that look alike are on one side, see ``linked_images``. ``contents`` are those of
    the data set.
    """
    images = together(train, val)
    is_divided = {*pixel_digests(train.pixels)} & {*pixel_digests(val.pixels)} or (
        len(images) <= MOST_COMPARED
        and near_copies(without_bars(val), without_bars(train), in_colour=False)
    )
    if not is_divided:
        return val
    with suppress(InputError):
        groups, *_ = linked_images(images, class_names, 2, {}, may_be_short=True)
        return images[hold_out_alike(images, groups, len(val) / len(images), contents)]
    return val


def keep_sides(
    images: Images, known: Mapping[str, str], tested: Collection[str], groups_of: Mapping[str, str]
) -> tuple[dict[str, str], Tensor]:
    """Return the side that each image keeps, by its name, and whether it is for testing: (N,) bool.

    ``known`` are the sides of known images. A new one that looks like a known one, or is of its
    group, has the same side; if they are on several sides, ``train``. The side of the others is
    empty, and they are for testing if they are in ``tested``.
    """
    links = _pairs_alike(images, in_colour=True), _pairs_in_groups(images, groups_of)
    groups = _groups(pixel_digests(images.pixels), *links).tolist()
    first: dict[int, str] = {}
    for side in ("train", "val", "test"):
        for group, name in zip(groups, images.names, strict=True):
            if known.get(name) == side:
                first.setdefault(group, side)
    named = zip(groups, images.names, strict=True)
    sides = {name: known.get(name) or first.get(group, "") for group, name in named}
    is_test = [side == "test" if side else name in tested for name, side in sides.items()]
    return sides, torch.tensor(is_test)


def folds_of_probes(images: Images, data: DataSet, folds: int) -> tuple[Tensor | None, str]:
    """Return the part of each image of a data set for cross-validation, from 0 to ``folds`` - 1.

    Own pictures of one group, or that look alike, are in one part, see ``linked_images``: (N,) on
    the device of the labels. All are in part 0 if a class has too few. None if no pictures belong
    together, and for other data sets. The text is that of ``except_in``.
    """
    if not data.contents:
        return None, ""
    images, device = images.to("cpu"), images.labels.device
    try:
        groups, digests, unlinked, _ = linked_images(images, data.class_names, folds, data.groups)
    except InputError:
        return torch.zeros_like(images.labels, device=device), ""
    if groups.max() + 1 == len(images):
        return None, except_in(unlinked)
    parts = spread(groups, images.labels.tolist(), digests, folds)
    return parts.to(device), except_in(unlinked)


def count_different(images: Images, data: DataSet) -> Tensor:
    """Return the number of images of each class, (K,); own ones of one group, or equal, count once.

    ``folds_of_probes`` needs so many as there are folds.
    """
    images = images.to("cpu")
    labels = images.labels
    if data.contents:
        groups = _groups(pixel_digests(images.pixels), _pairs_in_groups(images, data.groups))
        labels = torch.stack([labels, torch.from_numpy(groups)]).unique(dim=1)[0]
    return labels.bincount(minlength=data.num_classes)


def _pairs_alike(images: Images, *, in_colour: bool) -> Links:
    if len(images) > MOST_COMPARED:
        return np.empty((0, 2), np.int32)
    return pairs_alike(without_bars(images), in_colour=in_colour).int().numpy()


def _pairs_in_groups(images: Images, groups_of: Mapping[str, str]) -> Links:
    first: dict[str, int] = {}
    pairs = [
        (row, first.setdefault(groups_of[name], row))
        for row, name in enumerate(images.names)
        if name in groups_of
    ]
    return np.array(pairs, np.int32).reshape(-1, 2)


def _groups(digests: Sequence[Hashable], *links: Links) -> np.ndarray:
    """Return the number of each image's group: equal digests and links are in one group, (N,)."""
    from scipy.sparse import coo_array  # a training without folds needs no scipy
    from scipy.sparse.csgraph import connected_components

    first: dict[Hashable, int] = {}
    equal = [(row, first.setdefault(digest, row)) for row, digest in enumerate(digests)]
    pairs = np.concatenate([np.array(equal, np.int32), *links])
    graph = coo_array((np.ones(len(pairs), bool), pairs.T), shape=(len(digests),) * 2)
    return connected_components(graph, directed=False)[1]


def fewest_groups(groups: np.ndarray, labels: Sequence[int]) -> tuple[int, int]:
    """Return the smallest number of groups that a class has, and this class."""
    counts = _groups_by_class(groups.tolist(), labels)
    return min((count, label) for label, count in counts.items())


def _groups_by_class(groups: Sequence[int], labels: Sequence[int]) -> Counter[int]:
    return Counter(label for _, label in {*zip(groups, labels, strict=True)})
