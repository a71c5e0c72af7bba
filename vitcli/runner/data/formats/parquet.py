"""Pictures in Parquet files, as the Hugging Face Hub stores them: columns ``image``, ``label``.

The pictures are unpacked into the cache, beside a table that ``csv_file`` reads.
"""

import contextlib
import csv
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.runner.data.find import Listener, cache_root, explain_write_errors, is_offline
from vitcli.runner.data.formats.csv_file import list_csv
from vitcli.runner.data.listing import PictureFolder, file_version, split_of
from vitcli.runner.errors import InputError
from vitcli.runner.files import file_lock, scratch_folder
from vitcli.runner.text import composed, ignore_message, printable, quantity

TABLE, CLASSES = "labels.csv", "classes.json"
AT_ONCE = 256
"""Number of pictures that are read at a time."""
IMAGE, LABEL, GROUP = ("image", "img"), ("label", "labels", "fine_label"), "group"
Rows = Iterable[tuple[str, Sequence[Mapping[str, Any]]]]
"""Splits, and some rows of them."""


def list_parquet(path: Path) -> PictureFolder:
    """List the pictures of a Parquet file, or of the files in a folder, such as train-0.parquet.

    Raises:
        InputError: There is no such file, or one is damaged or has no pictures with labels.
    """
    import pyarrow
    from pyarrow import parquet

    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise InputError(f"{printable(path)} has no Parquet file; expected: PATH/train-*.parquet")
    splits = [_split_of_file(file, path) for file in files]
    if any(splits) and not all(splits):
        strange = printable(files[splits.index(None)])
        raise InputError(f"{strange}: its name does not begin with train, test or validation")
    stamp = hashlib.sha256(repr([(str(f), file_version(f)) for f in files]).encode()).hexdigest()
    place = (
        cache_root() / "unpacked" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    )
    current = files[0]

    def rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
        nonlocal current
        for split, current in zip(splits, files, strict=True):
            columns = [name for name in (image, label, GROUP) if name in schema.names]
            with damage_is_named(), parquet.ParquetFile(current) as opened:
                for batch in opened.iter_batches(AT_ONCE, columns=columns):
                    yield split or "", batch.to_pylist()

    @contextlib.contextmanager
    def damage_is_named() -> Iterator[None]:
        try:
            yield
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            reason = printable(str(error).partition("\n")[0])
            raise InputError(f"{printable(current)} cannot be read: {reason}") from error

    with damage_is_named():
        schema = parquet.read_schema(current)
        image, label, classes = _columns(schema.names, _features(schema.metadata or {}))
    try:
        return _unpacked(place, stamp, rows(), image, label, classes)
    except ValueError as error:
        raise InputError(f"{printable(current)}: {error}") from error


def _split_of_file(file: Path, root: Path) -> str | None:
    """Return the split of ``train-00000-of-00001.parquet`` or ``train/0000.parquet``."""
    beginnings = [file.stem.replace("_", "-").replace(".", "-").partition("-")[0], file.parent.name]
    return next(filter(None, map(split_of, beginnings[: 1 + (file.parent != root)])), None)


def _features(metadata: Mapping[bytes, bytes]) -> Mapping[str, Any]:
    """Return what the library datasets noted about the columns; empty if it did not write them."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found: dict[str, Any] = json.loads(metadata[b"huggingface"])["info"]["features"]
        return found
    return {}


def _columns(
    names: Sequence[str], features: Mapping[str, Any]
) -> tuple[str, str, Sequence[str] | None]:
    """Return the columns of the picture and of the label, and the names of the classes."""

    def first(known: Sequence[str], kind: str) -> str | None:
        typed = [n for n in names if (features.get(n) or {}).get("_type") == kind]
        return next((n for n in (*known, *typed) if n in names), None)

    image, label = first(IMAGE, "Image"), first(LABEL, "ClassLabel")
    if image is None or label is None:
        missing = "image" if image is None else "label"
        raise ValueError(f"no column {missing!r} in {', '.join(names)}")
    return image, label, (features.get(label) or {}).get("names")


def _unpacked(
    place: Path, stamp: str, rows: Rows, image: str, label: str, classes: Sequence[str] | None
) -> PictureFolder:
    """Return the pictures in a folder of the cache, and write them there if it is of other files.

    Raises:
        ValueError: A row has no picture or an unknown label.
    """
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(place.with_suffix(".lock")):
            facts = place / CLASSES
            if not (facts.is_file() and json.loads(facts.read_text())["stamp"] == stamp):
                with scratch_folder(place.parent, "unpacking-") as scratch:
                    folder = scratch / "new"
                    folder.mkdir()
                    lost = _write(folder, rows, image, label, classes)
                    about = {"stamp": stamp, "names": classes, "lost": lost}
                    (folder / CLASSES).write_text(json.dumps(about))
                    shutil.rmtree(place, ignore_errors=True)
                    folder.rename(place)
    return _list_unpacked(place)


def _list_unpacked(place: Path) -> PictureFolder:
    about = json.loads((place / CLASSES).read_text())
    names = about["names"] and [composed(name) for name in about["names"]]
    found = list_csv(place / TABLE, names)
    if not about["lost"]:
        return found
    note = f"left out {quantity(about['lost'], 'picture')} without a label"
    return replace(found, notes=(*found.notes, note))


def _write(folder: Path, rows: Rows, image: str, label: str, classes: Sequence[str] | None) -> int:
    """Write pictures and table, and return the number of pictures without a label."""
    lost = count = 0
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label", "split", "group"])
        for split, batch in rows:
            (folder / (split or "all")).mkdir(exist_ok=True)
            for row in batch:
                count += 1
                content, given = row[image], row[label]
                content = content.get("bytes") if isinstance(content, dict) else content
                if not isinstance(content, bytes):
                    raise ValueError(f"row {count:,} of the column {image!r} holds no bytes")
                if given is None or given == -1:  # a secret test set
                    lost += 1
                    continue
                if classes and not (isinstance(given, int) and 0 <= given < len(classes)):
                    what = f"label {given!r} is none of the {len(classes)} classes"
                    raise ValueError(f"row {count:,}: {what}")
                name = f"{split or 'all'}/{count:08}"
                (folder / name).write_bytes(content)
                group = row.get(GROUP)
                named = classes[given] if classes else given
                table.writerow([name, named, split, "" if group is None else group])
    return lost


def _place_of(name: str) -> Path:
    return cache_root() / "hub" / hashlib.sha256(name.encode()).hexdigest()[:12]


def list_hub(name: str) -> PictureFolder:
    """List the pictures of a data set of the Hub that is on this machine.

    Raises:
        InputError: It is not here. The text says how to download it.
    """
    if (_place_of(name) / CLASSES).is_file():
        return _list_unpacked(_place_of(name))
    found = _load_hub(name, offline=True)
    if isinstance(found, Exception):
        raise InputError(
            f"hf:{printable(name)} is not on this machine; download it: vitcli data get hf:{name}"
        )
    return _unpack_hub(name, found)


def fetch_hub(name: str, offline: bool, on_message: Listener = ignore_message) -> PictureFolder:
    """Download a data set of the Hub, unless it is here, and unpack it.

    Raises:
        InputError: It cannot be downloaded, or has no pictures with labels.
    """
    with contextlib.suppress(InputError):
        return list_hub(name)
    if is_offline(offline):
        raise InputError(
            f"hf:{printable(name)} is not on this machine, and downloads are forbidden"
        )
    on_message(f"downloading {printable(name)} from https://huggingface.co/datasets/{name}")
    found = _load_hub(name, offline=False)
    if isinstance(found, Exception):
        reason = printable(str(found).partition("\n")[0])
        raise InputError(f"hf:{printable(name)} cannot be downloaded: {reason}") from found
    return _unpack_hub(name, found)


def _load_hub(name: str, *, offline: bool) -> Any:
    """Return the splits of a data set as the library has them, or its error."""
    import datasets
    from huggingface_hub import constants

    repository, _, config = name.partition(":")
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    try:
        datasets.config.HF_HUB_OFFLINE = offline or before[0]
        constants.HF_HUB_OFFLINE = offline or before[1]
        return datasets.load_dataset(repository, config or None)
    except Exception as error:  # of many kinds
        return error
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _unpack_hub(name: str, found: Any) -> PictureFolder:
    one = next(iter(found.values()))
    features = one.features.to_dict()

    def rows() -> Iterator[tuple[str, list[dict[str, Any]]]]:
        for split, data in found.items():
            columns = data.select_columns([c for c in (image, label, GROUP) if c in one.features])
            for batch in columns.with_format("arrow").iter(AT_ONCE):
                yield split_of(split) or split, batch.to_pylist()

    try:
        image, label, classes = _columns([*features], features)
        return _unpacked(_place_of(name), name, rows(), image, label, classes)
    except ValueError as error:
        raise InputError(f"hf:{printable(name)}: {error}") from error
