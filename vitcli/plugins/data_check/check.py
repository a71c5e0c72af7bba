"""What is wrong with a folder of pictures, before anything is trained on it."""

import io
import os
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from PIL import Image

from vitcli.core.data.source import Images
from vitcli.runner.data import picture_reader
from vitcli.runner.data.arrays import Size, require_memory
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.contact_sheet import to_rgb
from vitcli.runner.data.corrections import (
    CORRECTIONS,
    corrections_file,
    describe_corrections,
    read_corrections,
    relabelled,
)
from vitcli.runner.data.deep import Seen, next_fields, notes_on, remarks_on
from vitcli.runner.data.extras import column_of, images_by_class
from vitcli.runner.data.folds import keep_sides
from vitcli.runner.data.labels import names_alike
from vitcli.runner.data.listing import PictureFolder, divided, group_of
from vitcli.runner.data.near_copies import (
    MOST_PAIRS,
    content_digests,
    pairs_alike,
    without_bars,
)
from vitcli.runner.data.pictures import decode, picture_bytes, quiet_pillow
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import typed_changes
from vitcli.runner.files import require_replaceable
from vitcli.runner.report.pages import data_uri, render
from vitcli.runner.report.tables import csv_lines, to_csv
from vitcli.runner.run.folder import find_run
from vitcli.runner.run.split import Sides, read_sides
from vitcli.runner.text import Listener, composed, ignore_message, listed, printable, quantity

MOST_SHOWN, MOST_ALIKE = 100, 1_000_000
"""Number of pairs of a kind on the page, and in the report: more do not fit into memory."""
TITLE = ": pictures checked by vitcli</title>"
SIDE = 128

GROUPS = {
    "twins": "Pictures with the same pixels in two classes",
    "copies": "Test pictures with the same pixels as a training picture",
    "near": "Test pictures that look like a training picture",
    "val": "Validation pictures with the same pixels as a training or test picture",
    "groups": "Held-out pictures of a group that has training pictures",
    "alike": "Training pictures that look alike",
}
"""Kind of pairs -> its heading. The first four are the rows of ``SAME``."""
PROBLEMS = (*picture_reader.SAME, "groups")
"""Kinds of pairs that make a training or its accuracy wrong."""
LEAKS = ("copies", "val", "groups")


@dataclass(frozen=True, kw_only=True)
class FolderCheck:
    folder: PictureFolder
    train: list[int]
    test: list[int]
    val: list[int]
    """The readable pictures, as indices of ``folder.paths``."""
    sizes: Counter[Size]
    """(H, W) of the files -> number of pictures."""
    img_size: Size
    """(H, W) at which a training would read them."""
    unreadable: list[str]
    pairs: picture_reader.Pairs
    """Kind of ``GROUPS`` -> the names of two pictures each."""
    unlinked: Sequence[str]
    """Classes whose pictures that look alike are on both sides of the held-out fifth."""
    images: Images
    notes: Mapping[str, Mapping[str, Any]]
    """What the files hold that is not read, and the fields that would read it."""
    fields: Mapping[str, Any]
    """All fields that would read more."""
    is_compared: bool
    """Whether pictures that look alike were searched for; too many pictures take too long."""
    num_unlisted: int
    """Number of pairs of training pictures that look alike beside ``pairs``."""
    known: Mapping[str, str]
    """Name -> the side of a picture that the run of --against knows."""
    groups: Mapping[str, str]
    """Name -> the group of a picture that is in one."""

    @property
    def sides(self) -> list[tuple[str, str, str | None]]:
        """Return name, side, and side in the run of --against, of each picture."""
        parts = {"train": self.train, "test": self.test, "val": self.val}
        named = ((self.folder.names[row], side) for side, rows in parts.items() for row in rows)
        return [(name, side, self.known.get(name)) for name, side in named]

    @property
    def seen(self) -> list[str]:
        """Return the held-out pictures that the run of --against was trained on."""
        return [name for name, now, then in self.sides if (now != "train") and then == "train"]

    @property
    def untested(self) -> list[str]:
        return [name for name, _, test in self.counts() if not test]

    @property
    def names_alike(self) -> list[tuple[str, str]]:
        return names_alike(self.folder.class_names)

    @property
    def listed(self) -> dict[str, Sequence[str]]:
        """Return the problems of pictures and classes that are no pairs of pictures."""
        return {
            "Pictures that cannot be read": [] if self.folder.data.skip_bad else self.unreadable,
            "Classes without test pictures": self.untested,
            "Held-out pictures that the run was trained on": self.seen,
            "Classes whose names look alike": [f"{a} and {b}" for a, b in self.names_alike],
        }

    @property
    def num_problems(self) -> int:
        pairs = sum(len(self.pairs[row]) for row in PROBLEMS)
        return pairs + sum(map(len, self.listed.values())) + len(self.notes)

    @property
    def left_out(self) -> list[str]:
        """Return what to leave out: held-out pictures, and all that have two labels.

        Pictures that look like one of another class stay, because they may be rightly labelled.
        Those of a class that only look alike stay, if otherwise it would have no test picture.
        """
        equal, near = self._copies()
        label = dict(zip(self.folder.names, self.folder.labels, strict=True))
        tested = {self.folder.names[row] for row in self.test} - equal
        others = {label[name] for name in tested - near}
        near = {name for name in near if label[name] in others}
        chosen = next((each for each in (equal | near, equal) if self._can_spare(each)), set())
        return sorted(chosen)

    @property
    def has_copies(self) -> bool:
        return any(self._copies())

    def _copies(self) -> tuple[set[str], set[str]]:
        label = dict(zip(self.folder.names, self.folder.labels, strict=True))
        equal = {name for row in LEAKS for name, _ in self.pairs[row]}
        equal |= {name for pair in self.pairs["twins"] for name in pair} | {*self.seen}
        return equal, {a for a, b in self.pairs["near"] if label[a] == label[b]}

    def _can_spare(self, names: Collection[str]) -> bool:
        parts = (self.train, self.test, self.val)
        before = [self._by_class(rows) for rows in parts]
        after = [
            self._by_class([row for row in rows if self.folder.names[row] not in names])
            for rows in parts
        ]
        has_classes = [*map(bool, before[0])] == [*map(bool, after[0])]
        return has_classes and [*map(any, before)] == [*map(any, after)]

    @property
    def leaks(self) -> list[str]:
        copies = {name for row in LEAKS for name, _ in self.pairs[row]}
        return sorted(copies - {*self.left_out})

    def counts(self) -> list[tuple[str, int, int]]:
        counts = map(self._by_class, (self.train, self.test))
        return [*zip(self.folder.class_names, *counts, strict=True)]

    def _by_class(self, rows: Sequence[int]) -> list[int]:
        folder, kept = self.folder, torch.tensor(rows, dtype=torch.long)
        extra = {kind: numbers[kept] for kind, numbers in folder.extra.items()}
        labels = torch.tensor(folder.labels)[kept]
        return images_by_class(extra, labels, len(folder.class_names))


def experiment_for(folder: PictureFolder) -> str:
    """Return the experiment that the next command trains; ``finetune`` has weights of colours."""
    return "quickstart" if column_of(folder.extra) or folder.in_chans not in (1, 3) else "finetune"


def sides_of(name: str) -> Sides:
    run = find_run(name)
    if (sides := read_sides(run)) is None:
        raise InputError(
            f"{run.name} does not say which pictures it was trained on: they are not your own, or"
            " an earlier version trained it"
        )
    return sides


def check_folder(
    folder: PictureFolder, on_message: Listener, kept: Sides = MappingProxyType({})
) -> FolderCheck:
    """Compare all pictures; of several shapes also stretched, to find copies of another shape.

    They are in the splits of a training that keeps the sides ``kept``, by content.
    """
    for note in folder.notes:
        on_message(note)
    sizes = Counter(picture_reader.sizes_of(folder))
    asked = folder.data.resize if experiment_for(folder) == "finetune" else None
    size = asked or picture_reader.natural_size(sizes)
    require_memory(len(folder.paths), folder.in_chans, size)
    seen = Seen()
    images, failures = picture_reader.read_labelled(folder, size, folder.in_chans, on_message, seen)
    unreadable = replace(folder, paths=[folder.paths[row] for row in failures], arrays=())
    sizes -= Counter(picture_reader.sizes_of(unreadable))
    notes = notes_on(seen, some_dark=False)
    for note in [*remarks_on(seen), *(notes_on(seen).keys() - notes.keys())]:
        on_message(note)
    groups = group_of(folder, folder.data.group)
    corrections = read_corrections(folder.data.corrections, folder)
    digests = content_digests(folder, failures)
    images = picture_reader.with_boxes(images, folder, size, digests)
    fields = _fields_needed(folder, size, seen)
    try:
        train, test, val, pairs, unlinked = picture_reader.split_folder(
            folder, images, digests, groups
        )
    except InputError as error:
        if not failures:
            raise
        advice = f"\nTo read them, type: {shlex.join(typed_changes(fields))}" if fields else ""
        raise InputError(f"{error}:\n{listed([*failures.values()])}{advice}") from error
    contents = picture_reader.contents_of(folder, digests)
    known = {name: kept[content] for name, content in contents.items() if content in kept}
    for note in picture_reader.notes_on_absent(kept, contents):
        on_message(note)
    if known and folder.num_test is None:
        rows = sorted(digests)
        tested = {folder.names[row] for row in test}
        _, is_test = keep_sides(images[torch.tensor(rows)], known, tested, groups)
        test = [row for row, tests in zip(rows, is_test.tolist(), strict=True) if tests]
        train = sorted({*rows} - {*test})
        pairs = picture_reader.same_pictures(*picture_reader.parts_of(images, train, test, val))
        unlinked = []
    if corrections:
        on_message(describe_corrections(corrections, folder.data.corrections, folder))
        images = relabelled(replace(images, extra=folder.extra), corrections)
        folder = replace(folder, labels=images.labels.tolist(), extra=images.extra)
        out = {row for row, name in enumerate(images.names) if corrections.get(name, 0) is None}
        train, test, val = ([n for n in rows if n not in out] for rows in (train, test, val))
        pairs = picture_reader.same_pictures(*picture_reader.parts_of(images, train, test, val))
    if len({height / width for height, width in sizes}) > 1:
        whole = replace(folder, data=folder.data.model_copy(update={"fit": "stretch"}))
        stretched, _ = picture_reader.read_labelled(whole, size, folder.in_chans, on_message)
        parts = picture_reader.parts_of(stretched, train, test, val)
        for row, found in picture_reader.same_pictures(*parts).items():
            named = {first for first, _ in pairs[row]}
            pairs[row] += [pair for pair in found if pair[0] not in named]
    is_compared = len(train) * max(len(train), len(test)) <= MOST_PAIRS
    trained = images[torch.tensor(train, dtype=torch.long)]
    pixels = without_bars(trained)
    alike = pairs_alike(pixels, trained.labels) if is_compared else torch.empty(0, 2).long()
    names, place = folder.names, {name: row for row, name in enumerate(trained.names)}
    ends = ((place[a], place[b]) for a, b in pairs["twins"] if {a, b} <= place.keys())
    twins = torch.tensor([max(pair) * len(train) + min(pair) for pair in ends], dtype=torch.long)
    alike = alike[~torch.isin(alike[:, 0] * len(train) + alike[:, 1], twins)]
    labels = trained.labels[alike]
    alike = alike[(labels[:, 0] == labels[:, 1]).int().argsort(stable=True)]  # two classes first
    pairs["alike"] = [(trained.names[a], trained.names[b]) for a, b in alike[:MOST_ALIKE].tolist()]
    held_out = [names[row] for row in [*test, *val]]
    pairs["groups"] = divided(held_out, [names[row] for row in train], groups)
    return FolderCheck(
        folder=folder,
        train=train,
        test=test,
        val=val,
        sizes=sizes,
        img_size=size,
        images=images,
        unreadable=list(failures.values()),
        pairs=pairs,
        unlinked=unlinked,
        notes=notes,
        fields=fields,
        is_compared=is_compared,
        num_unlisted=max(0, len(alike) - MOST_ALIKE),
        known=known,
        groups=groups,
    )


def _fields_needed(folder: PictureFolder, size: Size, seen: Seen) -> dict[str, Any]:
    """Return the fields that would read more; with some of them, others may be needed, too."""
    fields: dict[str, Any] = {}
    while (more := next_fields(seen)) and fields != fields | more:
        fields |= more
        spec = folder.data.replace(**{name.removeprefix("data."): fields[name] for name in fields})
        again, seen = picture_reader.read_as(spec, folder), Seen()
        picture_reader.read_labelled(again, size, again.in_chans, ignore_message, seen)
    return fields


def refuse_other_files(page: Path | None, leave_out: Path | None) -> None:
    if page is not None:
        require_replaceable(page, "page", TITLE.encode())
    if leave_out is not None:
        header = rb"\A%s\s" % ",".join(CORRECTIONS).encode()
        require_replaceable(leave_out, "list of copies", header)
        if page is not None and os.path.realpath(page) == os.path.realpath(leave_out):
            raise ConfigError(f"--page, --leave-out {page}: choose two files")


def page(check: FolderCheck) -> str:
    rows = {name: row for row, name in enumerate(check.folder.names)}
    groups = {GROUPS[name]: pairs for name, pairs in check.pairs.items()}
    shown = {
        name: _thumbnail(check, rows[name])
        for pairs in groups.values()
        for pair in pairs[:MOST_SHOWN]
        for name in pair
    }
    return render(
        "data_check.html",
        check=check,
        name=printable(check.folder.root),
        groups=groups,
        most=MOST_SHOWN,
        shown=shown,
    )


def _thumbnail(check: FolderCheck, row: int) -> str:
    if check.folder.arrays or check.folder.in_chans != IN_CHANS:
        shown = to_rgb(check.images.pixels[row : row + 1])[0]
    else:
        path = check.folder.paths[row]
        with quiet_pillow():
            data = check.folder.data.model_copy(update={"fit": "pad"})
            pixels = decode(picture_bytes(path), path, (SIDE, SIDE), IN_CHANS, data)
        shown = pixels.permute(1, 2, 0).numpy()
    with io.BytesIO() as file:
        Image.fromarray(shown).save(file, "JPEG", quality=85)
        return data_uri("jpeg", file.getvalue())


def corrections(check: FolderCheck, path: Path) -> str:
    """Return the file of --leave-out, which holds the corrections that were made already, too.

    A file with other lines, which a person has added, is not replaced.
    """
    given, out = check.folder.data.corrections, {composed(name): name for name in check.left_out}
    lines = csv_lines(corrections_file(given, check.folder), CORRECTIONS) if given else ()
    made = [(name, label) for _, name, label in lines if composed(name) not in out]
    rows = [*made, *((name, "") for name in out.values())]
    chosen = csv_lines(path, CORRECTIONS) if path.exists() and path.stat().st_size else ()
    others = {(name, label) for _, name, label in chosen} - {*rows}
    present = {*check.folder.names}
    if names := {name for name, label in others if label or name in present}:
        what = f"corrects {quantity(len(names), 'picture')} more, such as {min(names)!r}"
        raise ConfigError(f"--leave-out {path}: the file {what}; name another one, and join them")
    return to_csv([CORRECTIONS, *rows])
