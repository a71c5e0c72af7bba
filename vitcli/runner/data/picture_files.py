"""The picture files that a user names, alone or by their folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitcli.runner.data.pictures import FORMATS, software_of
from vitcli.runner.errors import InputError
from vitcli.runner.text import ignore_message

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".heic", ".heif")
assert len(FORMATS) == len(SUFFIXES) - 3, "JPEG and HEIC have two suffixes"
SOFTWARE = "vitcli attn-map"
"""The software that a PNG figure of ``attn-map`` names as its origin."""


def picture_files(
    names: Sequence[str], on_message: Callable[[str], None] = ignore_message
) -> list[str]:
    """Return files by name, and the pictures in folders, sorted by name.

    Figures of ``attn-map`` in a folder are skipped; the PNG file tells its origin. A figure that is
    named itself is not skipped.

    Raises:
        InputError: A folder holds no picture, or a name is empty.
    """
    found: list[str] = []
    for name in names:
        if not name:
            raise InputError("the name of a picture is empty; is a shell variable unset?")
        folder = Path(name)
        if name == "-" or not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(str(p) for p in folder.iterdir() if p.suffix.lower() in SUFFIXES)
        pictures = [file for file in inside if software_of(file) != SOFTWARE]
        own = len(inside) - len(pictures)
        if not pictures:
            figures = f"{own} figure{'s'[: own > 1]} of attn-map"
            only = f", only {figures}" if own else ""
            raise InputError(f"{name}: no picture in this folder{only} ({', '.join(SUFFIXES)})")
        if own:
            on_message(f"{name}: skipped {own} figure{'s'[: own > 1]} of attn-map")
        found += pictures
    return found
