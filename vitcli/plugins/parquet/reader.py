"""Pictures in Parquet files, as the Hub stores them, unpacked beside a table for ``csv_file``."""

import contextlib
import csv
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.runner import files
from vitcli.runner.data.find import cache_root, explain_write_errors
from vitcli.runner.data.formats.csv_file import COLUMNS, OPTIONAL, list_csv
from vitcli.runner.data.labels import stripped
from vitcli.runner.data.listing import PictureFolder, file_version, split_of
from vitcli.runner.data.pictures import MAX_BYTES
from vitcli.runner.errors import InputError
from vitcli.runner.text import composed, printable, quantity

TABLE, FACTS = "labels.csv", "facts.json"
UNPACKED = 3
"""Raised when files are unpacked to other pictures or labels than before."""
AT_ONCE = 16
MOST_TIMES = 100
"""Largest number of times the size of the files that their pictures may take, above a first
``MAX_BYTES``. Pictures are compressed already, so larger ones were written to fill the disk."""
IMAGE, LABEL, GROUP = ("image", "img"), ("label", "labels", "fine_label"), "group"
"""Names of the columns. Others of the Hub's types Image and ClassLabel are read without these."""


def list_parquet(path: Path) -> PictureFolder:
    """List the pictures of a Parquet file, or of the files in a folder, such as train-0.parquet."""
    parquets = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not parquets or not parquets[0].is_file():
        raise InputError(f"{printable(path)} has no Parquet file; expected: PATH/train-*.parquet")
    splits = _splits_of(parquets, path)
    if any(splits.values()) and (strange := [file for file in parquets if not splits[file]]):
        raise InputError(f"{printable(strange[0])}: its name has no train, test or validation")
    stamp = repr((UNPACKED, [(str(file), file_version(file)) for file in parquets]))
    (place,) = unpacked_folders(path)
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with files.file_lock(place.with_suffix(".lock")):
            if found := _cached(place, stamp):
                return found
            with files.scratch_folder(place.parent, "unpacking-") as scratch:
                facts = _unpack(splits, folder := scratch / "new")
                os.sync()  # one call, because fsync of each picture would take minutes
                files.commit_json(folder / FACTS, facts | {"stamp": stamp})
                shutil.rmtree(place, ignore_errors=True)
                folder.rename(place)
                files.sync_folder(place.parent)
            try:
                return _listed(place, facts)
            except InputError as error:
                inside = printable(place / TABLE)
                raise InputError(str(error).replace(inside, printable(path))) from error


def unpacked_folders(path: Path) -> list[Path]:
    return [cache_folder("unpacked", str(path.resolve()))]


def cache_folder(kind: str, name: str) -> Path:
    return cache_root() / kind / files.sha256(name.encode(errors="surrogateescape"))[:12]


def _cached(place: Path, stamp: str) -> PictureFolder | None:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, InputError):
        facts = files.read_json(place / FACTS)
        if facts["stamp"] == stamp and facts["table"] == files.sha256((place / TABLE).read_bytes()):
            found = _listed(place, facts)
            if facts["bytes"] == sum(map(os.path.getsize, found.paths)):
                return found
    return None


def _listed(place: Path, facts: Mapping[str, Any]) -> PictureFolder:
    found = list_csv(place / TABLE, facts["names"], exact=True)
    return replace(found, notes=(*facts["notes"], *found.notes))


def _splits_of(files: Sequence[Path], root: Path) -> dict[Path, str]:
    """Return the split of ``train-0.parquet`` or ``train/0.parquet``, else ''.

    If no name begins with a split, a word of it counts, as in ``beans-train.parquet``, provided
    that each file has one and one of them is for training.
    """
    for number in (1, None):
        found = {file: _first_split(file.relative_to(root), number) for file in files}
        if number is None and not ("train" in found.values() and all(found.values())):
            break
        if any(found.values()):
            return found
    return dict.fromkeys(files, "")


def _first_split(place: Path, number: int | None) -> str:
    """Return the split among so many first words of the names of a file and its folders."""
    names = (re.split("[-_.=]", name) for name in reversed(place.parts))
    return next(filter(None, (split_of(word) for name in names for word in name[:number])), "")


def _unpack(splits: Mapping[Path, str], folder: Path) -> dict[str, Any]:
    """Write pictures and table into a new folder; classes are those of the first training file."""
    folder.mkdir()
    names: list[str] | None = None
    unlabelled, unpacked, notes = 0, 0, list[str]()
    most = MAX_BYTES + MOST_TIMES * sum(path.stat().st_size for path in splits)
    first = sorted(enumerate(splits.items()), key=lambda each: each[1][1] not in ("", "train"))
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, *OPTIONAL])
        for number, (path, split) in first:
            own = f"{split or 'all'}-{number}"
            (folder / own).mkdir()
            for row, (content, label, group, own_names) in enumerate(_rows(path, notes)):
                names = own_names if names is None else names
                if strange := sorted({*names} ^ {*own_names}):
                    what = "is a class of some of the files only; the others have other classes"
                    raise InputError(f"{printable(path)}: {printable(strange[0])!r} {what}")
                unlabelled += label is None
                unpacked += len(content)
                if unpacked > most:
                    raise InputError(
                        f"{printable(path)}: its pictures take more than {most >> 20:,} MiB, over"
                        f" {MOST_TIMES} times the file; save them as PNG or JPEG"
                    )
                if label is not None:
                    (folder / own / f"{row:08}").write_bytes(content)
                    table.writerow([f"{own}/{row:08}", label, split, group])
    if unlabelled:
        notes.append(f"left out {quantity(unlabelled, 'picture')} without a label")
    table_hash = files.sha256((folder / TABLE).read_bytes())
    kept = sum(file.stat().st_size for file in folder.glob("*/*"))
    return {"names": names, "notes": [*dict.fromkeys(notes)], "table": table_hash, "bytes": kept}


def _rows(path: Path, notes: list[str]) -> Iterator[tuple[bytes, str | None, str, list[str]]]:
    """Yield picture, label, group and known class names; note the columns that are not read."""
    from pyarrow import parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            image, label, names = _columns(file.schema_arrow)
            present = file.schema_arrow.names
            columns = [name for name in (image, label, GROUP) if name in present]
            if unused := [name for name in present if name not in columns]:
                notes.append(f"not used: {printable(', '.join(unused))}")
            for batch in file.iter_batches(AT_ONCE, columns=columns):
                for cells in batch.to_pylist():
                    row += 1
                    content, given = cells[image], cells[label]
                    content = content.get("bytes") if isinstance(content, dict) else content
                    if not isinstance(content, bytes):
                        raise ValueError(f"row {row:,}: no bytes in the column {image!r}")
                    is_nan = given != given  # what pandas writes for no label
                    if given is None or is_nan or (names and given == -1):  # -1: a secret test set
                        yield content, None, "", names
                        continue
                    if names and not (isinstance(given, int) and 0 <= given < len(names)):
                        raise ValueError(f"row {row:,}: no class {given!r}; there are {len(names)}")
                    named = _text(names[given] if names else given)
                    if not stripped(named) or "\0" in named:
                        raise ValueError(f"row {row:,}: the label {named!r} is no name of a class")
                    yield content, named, _text(cells.get(GROUP)), names
    except MemoryError:
        raise
    except Exception as error:  # of many kinds, as in decoders
        reason = printable(str(error).partition("\n")[0])
        raise InputError(f"{printable(path)}: {reason}") from error


def _text(value: object) -> str:
    text = value.decode() if isinstance(value, bytes) else value
    return "" if text is None else composed(str(text))


def _columns(schema: Any) -> tuple[str, str, list[str]]:
    from pyarrow import types

    noted: dict[str, Any] = {}
    with contextlib.suppress(ValueError, LookupError, TypeError):  # by the library datasets
        facts = files.parse_strict_json(schema.metadata[b"huggingface"].decode())
        noted = dict(facts["info"]["features"])
    features = {name: each for name, each in noted.items() if isinstance(each, dict)}

    def first(known: Sequence[str], kind: str) -> str:
        typed = [name for name in schema.names if features.get(name, {}).get("_type") == kind]
        found = [name for name in dict.fromkeys((*known, *typed)) if name in schema.names]
        if not found:
            raise ValueError(f"no column {known[0]!r}; there are {', '.join(schema.names)}")
        return found[0]

    image, label = first(IMAGE, "Image"), first(LABEL, "ClassLabel")
    if types.is_nested(schema.field(label).type):
        raise ValueError(f"the column {label!r} has several values a picture; one label is needed")
    names = features.get(label, {}).get("names") or []
    if not isinstance(names, list) or not all(isinstance(name, str | int) for name in names):
        raise ValueError(f"the names of the classes of {label!r} are not a list of texts")
    return image, label, [composed(str(name)) for name in names]
