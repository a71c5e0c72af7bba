"""The user's own pictures, as the reader of their format lists them."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from vitcli.core.spec import DataSpec
from vitcli.core.spec.readers import DATA_READERS, DataReader
from vitcli.core.spec.rows import load_target
from vitcli.runner.data.formats.npz import list_arrays
from vitcli.runner.data.labels import notes_on_names
from vitcli.runner.data.listing import PictureFolder, own_path
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import printable


def list_pictures(name: str, data_dir: Path | None = None) -> PictureFolder:
    """Return the user's own pictures, as the row of the prefix lists them."""
    row, path = require_packages(name), own_path(name, data_dir)
    found = load_target(row.build)(path if row.is_path else str(path))
    if not isinstance(found, PictureFolder):
        place = Path(str(path) if row.is_path else name)
        found = list_arrays(place, {key: np.asarray(found[key]) for key in found})
    return replace(found, notes=(*found.notes, *notes_on_names(found.class_names)))


def require_packages(name: str) -> DataReader:
    """Return the row of a name of the user's own pictures."""
    prefix = name.partition(":")[0]
    row = DATA_READERS[prefix]
    if missing := [package for package in row.packages if find_spec(package) is None]:
        raise ConfigError(
            f"{prefix}: needs the package {missing[0]}; in the checkout, type: pip install '.[hub]'"
        )
    return row


def listed_for(spec: DataSpec, data_dir: Path | None = None) -> PictureFolder:
    """Return the pictures that a spec asks for: its own validation split only if it is wanted."""
    folder = list_pictures(spec.name, data_dir)
    wanted = spec.val_split == folder.num_val or 0 < spec.val_split < 1
    if not folder.num_val or (wanted and not spec.folds):
        return folder
    note = (
        f"{printable(folder.root)}: {folder.num_val:,} validation pictures are not used; to use"
        f" them, type: -s data.val_split={folder.num_val}"
    )
    return replace(folder.without_val(), notes=(*folder.notes, note))
