"""The picture files that a user names, alone or by their folder."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from vitcli.runner.data.pictures import FORMATS, software_of
from vitcli.runner.errors import InputError
from vitcli.runner.text import ignore_message, natural_key, quantity

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".heic", ".heif")
assert len(FORMATS) == len(SUFFIXES) - 3, "JPEG and HEIC have two suffixes"
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
            raise InputError(f"{name}: no picture in this folder{only} ({', '.join(SUFFIXES)})")
        if own:
            on_message(f"{name}: skipped {quantity(own, 'figure')} of attn-map")
        if num_others:
            on_message(
                f"{name}: ignored {quantity(num_others, 'file')}"
                f" (hidden, or not {', '.join(SUFFIXES)})"
            )
        found += pictures
    return found


def pictures_inside(folder: Path) -> tuple[list[str], int]:
    """Return the pictures in a folder and in the folders inside it, and the number of other files.

    Hidden folders and links to folders are not entered.

    Raises:
        InputError: A folder cannot be listed.
    """
    pictures: list[Path] = []
    num_others = 0
    for place, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = [Path(place, name) for name in files]
        kept = [path for path in paths if is_picture(path)]
        pictures += kept
        num_others += len(paths) - len(kept)
    pictures.sort(key=lambda path: [natural_key(part) for part in path.parts])
    return [str(path) for path in pictures], num_others


def is_picture(path: Path) -> bool:
    """Return whether a file has a picture's suffix and is not hidden."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def _refuse(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be listed: {error.strerror}") from error
