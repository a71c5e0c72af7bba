"""Files beside the pictures of a folder, such as captions or sounds, as ``Images.extra``.

Plugins add the kinds of files.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitcli.plugin import Registry
from vitcli.runner.errors import InputError
from vitcli.runner.text import listed, printable


@dataclass(frozen=True, kw_only=True)
class ExtraReader:
    """A kind of files beside the pictures of a folder."""

    is_own: Callable[[str], bool]
    """Whether a file of this name, in lower case, is of this kind, and so is not a picture."""
    read: Callable[[Path, Sequence[str], Sequence[str]], Tensor]
    """Takes the root of the folder, for messages, and the paths of files of this kind and of the
    pictures. Returns a tensor whose row i belongs to picture i. Raises InputError if a picture has
    no row."""
    random: Callable[[int, torch.Generator], Tensor]
    """Makes a tensor for a number of random pictures, to measure the time of a step."""


EXTRAS = Registry[ExtraReader]("extra")
"""Key of ``Images.extra`` -> its reader."""


def refuse_pictures(root: Path, bad: Sequence[str], total: int, what: str, hint: str) -> None:
    if bad:
        count = f"{len(bad):,} of {total:,} pictures"
        raise InputError(f"{printable(root)}: {count} {what}:\n{listed(bad)}\n{hint}")


def kind_of(name: str) -> str | None:
    """Return the name of the row of ``EXTRAS`` that a file belongs to; None for a picture."""
    return next((kind for kind, row in EXTRAS.items() if row.is_own(name.lower())), None)


def read_extras(
    root: Path, files: Sequence[str], pictures: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the extra tensors of the pictures, in their order, and why a kind has no tensor.

    No files of a kind give no tensor. Files that are damaged, or do not cover all pictures, give
    the reason.
    """
    tensors: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for kind, row in EXTRAS.items():
        if chosen := [path for path in files if kind_of(os.path.basename(path)) == kind]:
            try:
                tensors[kind] = row.read(root, chosen, pictures)
            except InputError as error:
                reasons[kind] = str(error)
    return tensors, reasons
