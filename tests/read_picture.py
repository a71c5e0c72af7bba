"""One picture as ``vitcli predict`` reads it, for the tests of pictures."""

from pathlib import Path

from torch import Tensor

from vitcli.runner.data.picture_reader import read_each
from vitcli.runner.errors import InputError


def read_picture(
    path: Path | str, *, size: tuple[int, int], in_chans: int = 3, fit: str = "crop"
) -> Tensor:
    """Return a picture as (in_chans, *size) uint8, or raise why it cannot be read."""
    (found,) = read_each([str(path)], size, in_chans, fit)
    if isinstance(found, InputError):
        raise found
    return found
