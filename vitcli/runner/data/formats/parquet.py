"""Pictures in Parquet files, as the Hugging Face Hub stores them: columns ``image``, ``label``.

The pictures are unpacked into the cache, beside a table that ``csv_file`` reads.
"""

import contextlib
import csv
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitcli.runner.data.find import Listener, cache_root, explain_write_errors, is_offline
from vitcli.runner.data.formats.csv_file import COLUMNS, OPTIONAL, list_csv
from vitcli.runner.data.listing import PictureFolder, file_version, split_of
from vitcli.runner.errors import InputError
from vitcli.runner.files import file_lock, scratch_folder
from vitcli.runner.text import composed, printable, quantity

TABLE, FACTS = "labels.csv", "facts.json"
AT_ONCE = 256
"""Number of pictures that are read at a time."""
IMAGE, LABEL, GROUP = ("image", "img"), ("label", "labels", "fine_label"), "group"
"""Names of the columns. Others of the Hub's types Image and ClassLabel are read without these."""


def list_parquet(path: Path) -> PictureFolder:
    """List the pictures of a Parquet file, or of the files in a folder, such as train-0.parquet.

    Raises:
        InputError: There is no such file, or one is damaged or has no pictures with labels.
    """
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise InputError(f"{printable(path)} has no Parquet file; expected: PATH/train-*.parquet")
    splits = {file: _split_of_file(file, path) for file in files}
    if any(splits.values()) and (strange := [file for file in files if not splits[file]]):
        known = "train, test or validation"
        raise InputError(f"{printable(strange[0])}: its name does not begin with {known}")
    stamp = repr([(str(file), file_version(file)) for file in files])
    (place,) = unpacked_folders(path)
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(place.with_suffix(".lock")):
            if not (place / FACTS).is_file() or _facts(place)["stamp"] != stamp:
                with scratch_folder(place.parent, "unpacking-") as scratch:
                    facts = _unpack(splits, folder := scratch / "new")
                    (folder / FACTS).write_text(json.dumps(facts | {"stamp": stamp}))
                    shutil.rmtree(place, ignore_errors=True)
                    folder.rename(place)
    facts = _facts(place)
    found = replace(list_csv(place / TABLE, facts["names"], exact=True), is_numbered=True)
    left_out = f"left out {quantity(facts['unlabelled'], 'picture')} without a label"
    return replace(found, notes=(left_out,)) if facts["unlabelled"] else found


def unpacked_folders(path: Path) -> list[Path]:
    """Return the folder of the cache with the pictures of Parquet files, in a list."""
    return [_place("unpacked", str(path.resolve()))]


def _place(kind: str, name: str) -> Path:
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    return cache_root() / kind / digest[:12]


def _facts(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / FACTS).read_text())
    return found


def _split_of_file(file: Path, root: Path) -> str:
    """Return the split of ``train-00000-of-00001.parquet`` or ``train/0000.parquet``, else ''."""
    beginning = file.stem.replace("_", "-").replace(".", "-").partition("-")[0]
    above = split_of(file.parent.name) if file.parent != root else None
    return split_of(beginning) or above or ""


def _unpack(splits: Mapping[Path, str], folder: Path) -> dict[str, Any]:
    """Write the pictures and their table into a new folder, and return what is known of them.

    The classes are those of the first training file.

    Raises:
        InputError: A file is damaged, or has other classes.
    """
    folder.mkdir()
    facts: dict[str, Any] = {"names": None, "unlabelled": 0}
    first = sorted(enumerate(splits.items()), key=lambda each: each[1][1] not in ("", "train"))
    with (folder / TABLE).open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, *OPTIONAL])
        for number, (path, split) in first:
            own = f"{split or 'all'}-{number}"
            (folder / own).mkdir()
            for row, (content, label, group, names) in enumerate(_rows(path)):
                facts["names"] = names if facts["names"] is None else facts["names"]
                if strange := sorted({*names} ^ {*facts["names"]}):
                    what = "is a class of some of the files only; the others have other classes"
                    raise InputError(f"{printable(path)}: {printable(strange[0])!r} {what}")
                facts["unlabelled"] += label is None
                if label is not None:
                    (folder / own / f"{row:08}").write_bytes(content)
                    table.writerow([f"{own}/{row:08}", label, split, group])
    return facts


def _rows(path: Path) -> Iterator[tuple[bytes, str | None, str, list[str]]]:
    """Yield each picture with its label, its group, and the names of the classes if known.

    Raises:
        InputError: The file is damaged, or a row has no picture or an unknown label.
    """
    from pyarrow import ArrowException, parquet

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            image, label, names = _columns(file.schema_arrow)
            columns = [name for name in (image, label, GROUP) if name in file.schema_arrow.names]
            for batch in file.iter_batches(AT_ONCE, columns=columns):
                for cells in batch.to_pylist():
                    row += 1
                    content, given = cells[image], cells[label]
                    content = content.get("bytes") if isinstance(content, dict) else content
                    if not isinstance(content, bytes):
                        raise ValueError(f"row {row:,}: no bytes in the column {image!r}")
                    if given is None or (names and given == -1):  # a secret test set of the Hub
                        yield content, None, "", names
                        continue
                    if names and not (isinstance(given, int) and 0 <= given < len(names)):
                        raise ValueError(f"row {row:,}: no class {given!r}; there are {len(names)}")
                    named = _text(names[given] if names else given)
                    yield content, named, _text(cells.get(GROUP)), names
    except (ArrowException, OSError, ValueError) as error:
        reason = printable(str(error).partition("\n")[0])
        raise InputError(f"{printable(path)}: {reason}") from error


def _text(value: object) -> str:
    return "" if value is None else composed(str(value))


def _columns(schema: Any) -> tuple[str, str, list[str]]:
    """Return the columns of picture and label, and the names of the classes if they are known."""
    features: dict[str, Any] = {}
    with contextlib.suppress(ValueError, KeyError, TypeError):  # what the library datasets noted
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    kinds = {name: (features.get(name) or {}).get("_type") for name in schema.names}

    def first(known: Sequence[str], kind: str) -> str:
        typed = [name for name in schema.names if kinds[name] == kind]
        found = next((name for name in (*known, *typed) if name in schema.names), None)
        if found is None:
            raise ValueError(f"no column {known[0]!r}; there are {', '.join(schema.names)}")
        return found

    image, label = first(IMAGE, "Image"), first(LABEL, "ClassLabel")
    names = (features.get(label) or {}).get("names") or []
    return image, label, [composed(str(name)) for name in names]


# Data sets of the Hub


def list_hub(name: str) -> PictureFolder:
    """List the pictures of a data set of the Hub that is on this machine.

    Args:
        name: Its name there, such as ``cifar10`` or ``OWNER/NAME``; ``NAME:CONFIG`` if it has some.

    Raises:
        InputError: It is not here. The text says how to download it.
    """
    place, _ = hub_folders(name)
    if not [*place.glob("*.parquet")]:
        try:
            _keep(name, place, offline=True)
        except InputError as error:
            hint = f"download it: vitcli data get hf:{name}"
            raise InputError(f"hf:{printable(name)} is not on this machine; {hint}") from error
    return list_parquet(place)


def fetch_hub(name: str, offline: bool, on_message: Listener) -> PictureFolder:
    """Download a data set of the Hub, unless it is here, and list its pictures.

    Raises:
        InputError: It cannot be downloaded, or has no pictures with labels.
    """
    if not is_offline(offline):
        with contextlib.suppress(InputError):
            return list_hub(name)
        url = f"https://huggingface.co/datasets/{name.partition(':')[0]}"
        on_message(f"downloading {printable(url)} to the cache of the library datasets")
        _keep(name, hub_folders(name)[0], offline=False)
    return list_hub(name)


def hub_folders(name: str) -> list[Path]:
    """Return the folders of the cache with the Parquet files of a data set, and its pictures."""
    place = _place("hub", name)
    return [place, *unpacked_folders(place)]


def _keep(name: str, place: Path, *, offline: bool) -> None:
    """Write a data set as Parquet files, from the cache of the library or from the Hub.

    Raises:
        InputError: The library cannot load it.
    """
    import datasets
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    repository, _, config = name.partition(":")
    with explain_write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(place.parent, "loading-") as scratch:
            try:
                datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
                found = datasets.load_dataset(repository, config or None)
                for split, rows in found.items():
                    rows.to_parquet(str(scratch / "new" / f"{split}.parquet"))
            except Exception as error:  # of many kinds
                reason = printable(str(error).partition("\n")[0])
                raise InputError(f"hf:{printable(name)} cannot be loaded: {reason}") from error
            finally:
                datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before
            shutil.rmtree(place, ignore_errors=True)
            (scratch / "new").rename(place)
