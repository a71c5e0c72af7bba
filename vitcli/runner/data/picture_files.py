"""The picture files that a user names, alone or by their folder."""

import mimetypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vitcli.runner.data.pictures import software_of
from vitcli.runner.errors import InputError
from vitcli.runner.text import ignore_message, natural_key, quantity

JUNK = ("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "desktop.ini", "icon\r")
"""Files that file managers write, in lower case."""
TYPES = mimetypes.MimeTypes()
"""The types of suffixes that Python knows by itself, the same on each machine."""
OTHERS = (
    *(".npy", ".npz", ".pt", ".pth", ".safetensors"),
    *(".svg", ".yaml", ".yml", ".jsonl", ".log"),
)
"""Suffixes of no picture with pixels that ``TYPES`` lacks or calls pictures."""
EVENTS = "events.out.tfevents"
"""Beginning of TensorBoard's files, whose suffix is the name of a computer."""
SOFTWARE = "vitcli attn-map"
"""The software that a PNG figure of ``attn-map`` names as its origin."""


def picture_files(
    names: Sequence[str], on_message: Callable[[str], None] = ignore_message
) -> list[str]:
    """Return files by name, and the pictures in folders and in the folders inside them.

    The pictures of a folder are in natural order: ``2.jpg`` before ``10.jpg``. Hidden folders are
    skipped, and so are figures of ``attn-map``; the PNG file tells its origin. A figure that is
    named itself is not skipped.

    Raises:
        InputError: A folder holds no picture or cannot be listed, or a name is empty.
    """
    found: list[str] = []
    for name in names:
        if not name:
            raise InputError("the name of a picture is empty; is a shell variable unset?")
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            found.append(name)
            continue
        inside, num_others = pictures_inside(folder)
        pictures = [file for file in inside if software_of(file) != SOFTWARE]
        own = len(inside) - len(pictures)
        if not pictures:
            figures = f"{quantity(own, 'figure')} of attn-map"
            only = f", only {figures}" if own else ""
            raise InputError(f"{name}: no picture in this folder{only}")
        if own:
            on_message(f"{name}: skipped {quantity(own, 'figure')} of attn-map")
        if num_others:
            on_message(f"{name}: ignored {quantity(num_others, 'file')} (hidden, or not a picture)")
        found += pictures
    return found


def pictures_inside(folder: Path) -> tuple[list[str], int]:
    """Return the pictures in a folder and in the folders inside it, and the number of other files.

    Hidden folders are not entered. Links to folders are followed, to each folder once.

    Raises:
        InputError: A folder cannot be listed.
    """
    pictures: list[Path] = []
    num_others, seen = 0, set()
    for place, folders, files in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        kept = [Path(place, name) for name in files if is_picture(name)]
        pictures += kept
        num_others += len(files) - len(kept)
    pictures.sort(key=lambda path: [natural_key(part) for part in path.parts])
    return [str(path) for path in pictures], num_others


def is_picture(name: str) -> bool:
    """Return whether a file of a folder is read as a picture, by its name.

    A file without a suffix, or with a suffix of no known type, is read. So a picture under a wrong
    or rare name is refused with a reason, and not left out.
    """
    if name.startswith((".", EVENTS)) or name.lower() in JUNK or name.lower().endswith(OTHERS):
        return False
    kind, packed = TYPES.guess_type(f"/{name}")
    return packed is None and (kind is None or kind.startswith("image/"))


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be listed: {error.strerror}") from error
