"""The store of saved trials: results to commit, in two files for each seed of a study. No torch.

``STUDY/seed0.jsonl`` has one line for each trial. It holds the trial's record and ends with the
SHA-256 of the rest of the line. ``STUDY/seed0.npz`` holds the label, the prediction and the
probability of the label for each test image, in members ``VARIANT/HASH/label.npy``. A line states
the hash of its predictions; members that no line states are ignored.

The predictions of a trial are written before its line, each file as a whole. So a killed process
leaves both files readable, with every earlier trial.
"""

import functools
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitcli.core.spec import ExperimentSpec
from vitcli.runner import files
from vitcli.runner.errors import InputError
from vitcli.runner.run.predictions import MAX_BYTES, Arrays, PerImage, per_image, read_outputs
from vitcli.runner.run.record import RunRecord, saved_record

FORMAT = 2
WEIGHTS = ("init_sha256", "teacher_sha256")
"""Fields of a record with the weights that a trial started or learned from."""
DAMAGES = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A saved trial as it was found. Only the hash of its record has been checked."""

    place: str
    value: dict[str, Any]
    key: str
    """Hash of configuration, data, precision and CPU threads: two trials of a seed differ in one
    of them."""
    content: Callable[[], bytes]
    """Reads the file with its predictions."""
    line: str = ""
    """The line in the store."""

    @property
    def config_hash(self) -> str:
        return str(self.value["record"]["config_hash"])

    @property
    def seed(self) -> int:
        return int(self.value["record"]["seed"])

    @property
    def started(self) -> str:
        return str(self.value["record"]["sessions"][-1].get("started"))

    @property
    def members(self) -> str:
        """How the names of the members with its predictions begin; empty if it diverged."""
        digest = self.value["predictions_sha256"]
        return f"{self.value['variant']}/{digest[:16]}/" if digest else ""

    @property
    def weights(self) -> list[str | None]:
        return [self.value["record"].get(name) for name in WEIGHTS]

    def predictions(self) -> Arrays:
        arrays = read_outputs(self.content(), self.members)
        if hash_of(arrays) != self.value["predictions_sha256"]:
            raise ValueError("its predictions do not match their hash")
        return arrays

    def check(self, source: str = "", spec: ExperimentSpec | None = None) -> RunRecord:
        """Return the trial, of a store of this name, after checking numbers and predictions."""
        with _errors_name(self.place):
            record = saved_record(self.value["record"], self.value["config"], source, spec)
            _check_numbers(record)
            if record.state == "diverged":
                return record
            images = per_image(self.predictions(), record.task)
            if images is None:
                return record
            try:
                _check_predictions(images, record)
            except ValueError:
                if not (spec and spec.code):  # an own objective may store something else
                    raise
                return record
            file = Path(self.place.rpartition(":")[0]).with_suffix(".npz")
            return record.changed(images=images, stored_predictions=f"{file}:{self.members}")


def read_store(folder: Path) -> list[Entry]:
    """Return every saved trial in a folder and below it."""
    if old := next(folder.rglob("seed*-*.json"), None):
        raise InputError(
            f"{old}: vitcli 0.8 saved this trial; move such files away, or train their study with"
            " --rerun and --save in vitcli 1.0"
        )
    return [entry for path in sorted(folder.rglob("seed*.jsonl")) for entry in read_lines(path)]


def read_lines(path: Path) -> list[Entry]:
    """Return the trials of a seed, ``seed0.jsonl``; none if the file does not exist."""
    try:
        with _errors_name(path):
            text = files.read_bounded(path, files.MAX_JSON).decode()
            lines = text.replace("\r\n", "\n").split("\n")  # as git writes them on Windows
            if lines.pop():
                raise ValueError("its last line is not whole")
    except InputError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise
    content = functools.cache(lambda: files.read_bounded(path.with_suffix(".npz"), MAX_BYTES))
    return [
        _read_line(f"{path}:{number}", line, content) for number, line in enumerate(lines, start=1)
    ]


def _read_line(place: str, line: str, content: Callable[[], bytes]) -> Entry:
    with _errors_name(place):
        value = files.parse_strict_json(line)
        digest = value.pop("sha256", "")
        body = line.removesuffix(f', "sha256": "{digest}"}}') + "}"
        if not digest or files.sha256(body.encode()) != digest:
            raise ValueError("it does not match its hash")
        return _entry(place, value, content, line)


def _entry(
    place: str, value: dict[str, Any], content: Callable[[], bytes], line: str = ""
) -> Entry:
    if value["format"] != FORMAT:
        raise InputError(f"{place}: not a saved trial of format {FORMAT}; update vitcli")
    record = value["record"]
    if type(record["seed"]) is not int:
        raise ValueError(f"its seed is {record['seed']}")
    sessions = record["sessions"]
    precision = record["result"].get("precision") or sessions[0].get("precision")
    parts = [record["config_hash"], record["data_hash"], str(precision)]
    if sessions[0].get("device", "cpu") == "cpu":  # as in ``thread_mismatch``
        parts += sorted({str(session.get("threads")) for session in sessions})
    key = files.sha256("/".join(parts).encode())
    return Entry(place=place, value=value, key=key, content=content, line=line)


def hash_of(arrays: Arrays) -> str:
    """Return the SHA-256 of the names, types, shapes and values of arrays."""
    parts = (
        f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes()
        for name, array in sorted(arrays.items())
    )
    return files.sha256(b"".join(parts))


@contextmanager
def _errors_name(place: str | Path) -> Iterator[None]:
    """Let errors about the content of a file name the place and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from error
    except DAMAGES as error:
        what = error.args[0] if type(error) is ValueError and error.args else ""
        raise InputError(
            f"{place}: damaged{f' ({what})' if what else ''}; restore it, or delete it"
        ) from error


def _check_numbers(record: RunRecord) -> None:
    headline = record.headline
    test, val = (record.number(f"{split}_{headline.name}") for split in ("test", "val"))
    if (test is None) != (record.state == "diverged"):
        raise ValueError(f"its state is {record.state}, its test {headline.label} is {test}")
    for value in (test, val, *(value for _, value in record.curve)):
        if value is not None and not headline.is_possible(value):
            raise ValueError(f"its {headline.label} is {value}")


def _check_predictions(images: PerImage, record: RunRecord) -> None:
    value, text = record.test_score or 0.0, record.headline.label
    kind, count = images.scores.dtype, len(images.scores)
    rounding = np.finfo(kind.name).eps if kind.kind == "f" else 0.0
    if abs(images.mean - value) > max(1e-6, rounding * abs(value)):
        raise ValueError(f"its {text} is {value:.4f}, but its predictions give {images.mean:.4f}")
    if count != record.result.get("num_test"):
        counted = record.result.get("num_test")
        raise ValueError(f"it counts {counted} images, but has predictions of {count}")


def save(
    folder: Path, value: dict[str, Any], predictions: Callable[[], Arrays] | None, *, replace: bool
) -> None:
    """Add a trial to the files of its seed, ``folder/STUDY/seed0.jsonl`` and ``.npz``.

    A trial with the same configuration, data, precision and CPU threads is replaced if it used
    other weights, or if ``replace`` is set. ``value`` has its ``study``, ``variant``, ``config``
    (changed fields) and ``record``; ``predictions`` returns the condensed predictions.
    """
    value = {"format": FORMAT, **value, "predictions_sha256": None}
    new = _entry("", value, bytes)
    path = folder / value["study"] / f"seed{new.seed}.jsonl"
    files.make_folder(path.parent)
    with files.file_lock(path.parent / files.LOCK):
        entries = read_lines(path)
        same = [entry.weights for entry in entries if entry.key == new.key]
        if not replace and new.weights in same:
            return
        if predictions:
            arrays = predictions()
            value["predictions_sha256"] = hash_of(arrays)
            _add_members(path.with_suffix(".npz"), entries, new, arrays)
        body = json.dumps(value, allow_nan=False)
        line = f'{body[:-1]}, "sha256": "{files.sha256(body.encode())}"}}'
        lines = [entry.line for entry in entries if entry.key != new.key]
        files.commit(path, "".join(f"{kept}\n" for kept in [*lines, line]).encode())


def _add_members(path: Path, entries: Sequence[Entry], new: Entry, arrays: Arrays) -> None:
    known = {entry.members for entry in entries} - {"", new.members}
    with _errors_name(path):
        content = files.read_bounded(path, MAX_BYTES) if known else b""
        kept = {name: read_outputs(content, name) for name in known}
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for start, members in sorted((kept | {new.members: arrays}).items()):
                for name, array in members.items():
                    with io.BytesIO() as member:
                        np.save(member, array, allow_pickle=False)
                        info = zipfile.ZipInfo(f"{start}{name}.npy")
                        archive.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED)
        files.commit(path, file.getvalue())
