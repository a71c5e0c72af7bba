"""Files that belong to the pictures of a folder, such as captions, and the tensors made of them.

Each kind of such files is a row of ``EXTRAS``. The row's name is the key in ``Images.extra``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from vitcli.runner.data.captions import is_captions, read_captions
from vitcli.runner.data.picture_files import is_picture
from vitcli.runner.data.sounds import is_sound, read_sounds
from vitcli.runner.errors import InputError


@dataclass(frozen=True, kw_only=True)
class ExtraReader:
    """A kind of files beside the pictures of a folder."""

    is_own: Callable[[str], bool]
    """Whether a file of this name is of this kind, and so is not a picture."""
    read: Callable[[Path, Sequence[str], Sequence[str]], Tensor]
    """Takes the root of the folder, the files of this kind and the pictures, as paths. Returns a
    tensor whose row i belongs to picture i. Raises InputError if a picture has no row."""


EXTRAS = {
    "caption": ExtraReader(is_own=is_captions, read=read_captions),
    "sound": ExtraReader(is_own=is_sound, read=read_sounds),
}


def kind_of(name: str) -> str | None:
    """Return the name of the row of ``EXTRAS`` that a file belongs to; None for a picture."""
    return next((kind for kind, reader in EXTRAS.items() if reader.is_own(name)), None)


def is_image(name: str) -> bool:
    """Return whether a file of a folder is read as a picture, by its name."""
    return is_picture(name) and kind_of(name) is None


def read_extras(
    root: Path, files: Sequence[str], pictures: Sequence[str]
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the extra tensors of the pictures, in their order, and why a kind has no tensor.

    No files of a kind give no tensor. Files that are damaged, or do not cover all pictures, give
    the reason.
    """
    found: dict[str, Tensor] = {}
    reasons: dict[str, str] = {}
    for kind, reader in EXTRAS.items():
        if own := [path for path in files if reader.is_own(Path(path).name)]:
            try:
                found[kind] = reader.read(root, own, pictures)
            except InputError as error:
                reasons[kind] = str(error)
    return found, reasons
