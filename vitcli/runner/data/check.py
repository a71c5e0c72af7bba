"""What is wrong with a folder of pictures, before anything is trained on it."""

import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from vitcli.runner.data.arrays import Size, require_memory
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.find import Listener
from vitcli.runner.data.folder import PictureFolder, list_folder
from vitcli.runner.data.near_copies import MOST_PAIRS, near_copies
from vitcli.runner.data.picture_reader import (
    Copies,
    find_copies,
    kept_area,
    name_of,
    natural_size,
    picture_sizes,
    read_labelled,
    splits,
)
from vitcli.runner.data.pictures import decode, picture_bytes, quiet_pillow
from vitcli.runner.pages import data_uri, render
from vitcli.runner.text import printable

NUMBERED = re.compile(r"(.*?)(\d{1,15})\D*")
"""A file name with a number: what stands before its last number, and the number."""
MOST_SHOWN = 100
"""Number of pairs of a kind that the page shows."""
SIDE = 128
"""Side of a picture on the page, in pixels."""


@dataclass(frozen=True, kw_only=True)
class FolderCheck:
    """The pictures of a folder and their problems. Pairs are rows of ``folder.paths``."""

    folder: PictureFolder
    train: list[int]
    test: list[int]
    sizes: Counter[Size]
    """(H, W) of the files -> number of pictures."""
    img_size: Size
    """(H, W) at which a training would read them."""
    unreadable: list[str]
    copies: Copies
    alike_in_train: list[tuple[int, int]]
    """Training pictures that look alike."""
    is_compared: bool
    """Whether pictures that look alike were searched for; too many pictures take too long."""
    series: list[tuple[int, int]]
    """A test picture and a training picture with neighbouring numbers in their names."""

    @property
    def num_problems(self) -> int:
        """Return the number of files and pairs that make a training or its accuracy wrong."""
        found = self.copies
        pairs = (found.leaks, found.alike, found.contradictions)
        return len(self.unreadable) + sum(map(len, pairs))

    def counts(self) -> list[tuple[str, int, int]]:
        """Return each class with its number of readable training and test pictures."""
        labels = self.folder.labels
        train, test = (Counter(labels[row] for row in rows) for rows in (self.train, self.test))
        return [(name, train[i], test[i]) for i, name in enumerate(self.folder.class_names)]


def check_folder(root: Path, size: Size | None, on_message: Listener) -> FolderCheck:
    """Read all pictures of a folder, and compare them.

    Args:
        root: The folder, in one of the layouts that a training reads.
        size: (H, W) at which the pictures are read; by default that of a training.
        on_message: Receives notes and progress.

    Raises:
        InputError: It is no folder of pictures, or no picture of a class can be read.
        ResourceError: The pictures do not fit into memory.
    """
    folder = list_folder(root)
    for note in folder.notes:
        on_message(note)
    sizes = Counter(picture_sizes(folder.paths))
    size = size or natural_size(sizes)
    require_memory(len(folder.paths), IN_CHANS, size)
    images, failures = read_labelled(folder, size, IN_CHANS, on_message)
    train, test = splits(folder, [r for r in range(len(folder.paths)) if r not in failures])
    is_compared = len(train) * max(len(train), len(test)) <= MOST_PAIRS
    alike = near_copies(images.pixels[torch.tensor(train)]) if is_compared else []
    copies = find_copies(folder, images.pixels, train, test)
    same = ((max(pair), min(pair)) for pair in copies.contradictions)
    return FolderCheck(
        folder=folder,
        train=train,
        test=test,
        sizes=sizes,
        img_size=size,
        unreadable=list(failures.values()),
        copies=copies,
        alike_in_train=sorted({(train[a], train[b]) for a, b in alike} - {*same}),
        is_compared=is_compared,
        series=_series(folder, train, test),
    )


def _series(
    folder: PictureFolder, train: Sequence[int], test: Sequence[int]
) -> list[tuple[int, int]]:
    """Return test pictures whose name has the number before or after a training picture's."""
    places: dict[tuple[str, int], int] = {}
    for row in train:
        if place := _numbered(folder, row):
            places[place] = row
    found = []
    for row in test:
        prefix, number = _numbered(folder, row) or ("", -9)
        beside = [places.get((prefix, number + step)) for step in (-1, 1)]
        found += [(row, other) for other in beside if other is not None][:1]
    return found


def _numbered(folder: PictureFolder, row: int) -> tuple[str, int] | None:
    """Return the series of a file (its class and what stands before the number), and the number."""
    match = NUMBERED.fullmatch(Path(folder.paths[row]).stem)
    return (f"{folder.labels[row]}/{match[1]}", int(match[2])) if match else None


GROUPS = {
    "leaks": "Test pictures with the same pixels as a training picture",
    "alike": "Test pictures that look like a training picture",
    "contradictions": "Training pictures with the same pixels in two classes",
    "alike_in_train": "Training pictures that look alike",
    "series": "Test pictures with a name next to a training picture's",
}
"""Kind of pairs -> its heading."""


def pairs_of(check: FolderCheck) -> dict[str, list[tuple[str, str]]]:
    """Return each kind of pairs of ``GROUPS`` as paths in the folder."""
    found = check.copies
    rows = {
        "leaks": found.leaks,
        "alike": found.alike,
        "contradictions": found.contradictions,
        "alike_in_train": check.alike_in_train,
        "series": check.series,
    }
    return {
        name: [(name_of(check.folder, a), name_of(check.folder, b)) for a, b in pairs]
        for name, pairs in rows.items()
    }


def page(check: FolderCheck) -> str:
    """Return an HTML page with the pictures of the pairs side by side."""
    groups = {GROUPS[name]: pairs for name, pairs in pairs_of(check).items()}
    shown = {
        name: _thumbnail(check.folder.root / name)
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


def _thumbnail(path: Path) -> str:
    with quiet_pillow():
        pixels = decode(picture_bytes(path), path, (SIDE, SIDE), IN_CHANS, "pad")
    with io.BytesIO() as file:
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=85)
        return data_uri("jpeg", file.getvalue())


def document(check: FolderCheck) -> dict[str, object]:
    """Return a check as JSON values."""
    return {
        "folder": str(check.folder.root),
        "images_per_class": {name: list(counts) for name, *counts in check.counts()},
        "num_train": len(check.train),
        "num_test": len(check.test),
        "sizes": [[*size, count] for size, count in check.sizes.most_common()],
        "img_size": list(check.img_size),
        "kept_area": kept_area(check.sizes, check.img_size),
        "unreadable": check.unreadable,
        **pairs_of(check),
        "is_compared": check.is_compared,
        "num_problems": check.num_problems,
    }
