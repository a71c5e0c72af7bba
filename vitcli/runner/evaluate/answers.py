"""Rows of predictions: lines of CSV or JSON, a file that can be continued, and their report."""

import contextlib
import csv
import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

from vitcli.runner.errors import ConfigError, InputError, InUseError
from vitcli.runner.evaluate.classifier import LAST_FIELDS, SCHEMA, Classifier
from vitcli.runner.files import errors_name, make_output_folder, require_utf8
from vitcli.runner.report.report import SHARE, DataTable, Fact, Field, Report, cell_value, hidden
from vitcli.runner.report.tables import to_csv
from vitcli.runner.text import printable, quantity

Row = Mapping[str, Any]
OTHER = "choose another -o"
NUM_LIKELIEST = 5


def to_line(row: Row, form: str) -> str:
    """Return a row on one line: CSV has escapes for a backslash and what is not printable."""
    if form == "jsonl":
        return json.dumps(row, allow_nan=False)
    cells = [v.replace("\\", r"\\") if isinstance(v, str) else cell_value(v) for v in row.values()]
    return printable(to_csv([cells]).rstrip("\n"))


def header(names: Sequence[str]) -> str:
    return to_line({name: name for name in names}, "csv")


class AnswerFile:
    """A file of rows, each on the disk as soon as it is written. One process writes it at a time.

    Args:
        path: A file that ends with .csv or .jsonl.
        classifier: What answers.
        top: Largest number of probabilities in a row.
        resume: Whether to continue a file. A last line that was cut short is removed.

    Raises:
        ConfigError: The file is there and is not to be continued, or its answers are of others.
        InputError: The file holds something else.
        InUseError: Another process writes the file.
    """

    def __init__(self, path: Path, classifier: Classifier, top: int, *, resume: bool) -> None:
        self.path, self.form, self.classifier = path, path.suffix.removeprefix("."), classifier
        self.columns = tuple(classifier.columns)
        self.top = len(classifier.names) if classifier.answers else min(top, len(classifier.names))
        if self.form not in ("csv", "jsonl"):
            raise ConfigError(f"-o {printable(path)}: the file of answers ends with .csv or .jsonl")
        require_utf8(path)
        if path.exists() and not (resume and path.is_file()):
            advice = "add --resume to continue this file, or " if path.is_file() else ""
            raise ConfigError(f"-o {path} exists; {advice}{OTHER}")
        self.num_accepted = 0
        self.errors: list[str] = []
        """Those of all rows, also of rows that were in the file before."""
        self._done = Counter[str]()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Self]:
        """Take the rows of the file, and keep other processes from writing it in the block."""
        make_output_folder(self.path.parent)
        with self.path.open("a+b") as file:
            with errors_name(self.path):
                self._lock(file)
                file.seek(0)
                size = self._read(file)
                file.truncate(size)
            if self.form == "csv" and not size:
                self._write(header(self.columns))
            yield self

    def _lock(self, file: BinaryIO) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InUseError(
                f"-o {self.path}: another process is writing this file; wait until it has ended, or"
                f" {OTHER}"
            ) from error
        except OSError:  # a file system without locks
            pass

    def _read(self, file: BinaryIO) -> int:
        """Take all whole lines, and return their number of bytes."""
        size, is_csv = 0, self.form == "csv"
        start = header(self.columns) + "\n" if is_csv else '{"file": "'
        for number, line in enumerate(file, start=1):
            text = line.decode(errors="replace")
            if number == 1 and text[: len(start)] != start[: len(text)]:
                raise InputError(f"{self.path}:1: no answer of {self.classifier.name}; {OTHER}")
            if line.endswith(b"\n"):  # else the last one was cut short
                if number > 1 or not is_csv:
                    self._take(text[:-1], number)
                size += len(line)
        return size

    def _take(self, line: str, number: int) -> None:
        place = f"{self.path}:{number}"
        try:
            row = parsed(line, self.form, self.columns)
            schema, classifier = str(row["schema"]), row["classifier"]
            shares = row.get("probabilities") or {}
            count = len(json.loads(shares) if isinstance(shares, str) else shares)
        except (ValueError, TypeError, csv.Error) as error:
            raise InputError(f"{place}: no answer of vitcli predict; {OTHER}") from error
        if schema != str(SCHEMA):
            raise InputError(f"{place}: schema {schema}, not {SCHEMA}; {OTHER}")
        if classifier != self.classifier.name:
            raise ConfigError(
                f"{place}: an answer of {classifier}, not of {self.classifier.name}: the model or"
                f" an option differs; {OTHER}"
            )
        if count not in (0, self.top):
            raise ConfigError(f"{place}: --top {count}, not {self.top}; {OTHER}")
        self._count(row)
        self._done[str(row["file"])] += 1

    def _count(self, row: Row) -> None:
        self.errors += filter(None, [row["error"]])
        self.num_accepted += row.get("accepted") in (True, "true")

    def is_done(self, file: str) -> bool:
        """Return whether the file had a row of this picture, which counts once."""
        name = parsed(to_line({"file": file}, self.form), self.form, ("file",))["file"]
        self._done[name] -= 1
        return self._done[name] >= 0

    def write(self, row: Row) -> None:
        self._count(row)
        self._write(to_line(row, self.form))

    def _write(self, line: str) -> None:
        with errors_name(self.path), self.path.open("ab") as file:
            file.write(f"{line}\n".encode())

    def report(self, run: str, num_pictures: int, judged: bool) -> Report:
        """Return what the file holds now."""
        facts = [*hidden(run=run), Fact("num_pictures", num_pictures, label="pictures")]
        facts += [Fact("num_accepted", self.num_accepted, label="accepted")] if judged else []
        facts += [Fact("num_failed", len(self.errors), label="failed")]
        return Report(facts=facts, files=[self.path])


def parsed(line: str, form: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a line; those of CSV are texts."""
    if form == "csv":
        return dict(zip(names, next(csv.reader([line])), strict=True))
    row = dict(json.loads(line))
    if tuple(row) != names:
        raise ValueError("it has other fields")
    return row


def likeliest(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{n} {SHARE.text(p)}" for n, p in islice(shares.items(), NUM_LIKELIEST))


def report_of(classifier: Classifier, rows: Sequence[Row], num_top: int, judged: bool) -> Report:
    """Return the answers for pictures; ``accepted`` is null unless pictures are judged."""
    run, columns = hidden(run=classifier.source), classifier.columns
    if classifier.answers:
        texts = {"probabilities": likeliest}
        fields = [Field(n, text=texts.get(n), is_shown=n not in LAST_FIELDS) for n in columns]
        return Report(facts=run, tables=[DataTable("pictures", fields, rows)])
    top = [
        {"file": row["file"], "class": name, "probability": share}
        for row in rows
        for name, share in [*row["probabilities"].items()][:num_top]
    ]
    shown = {"file", "class", "probability"} | ({"accepted"} if judged else set())
    shown |= {"set"} if any(row["set"] is not None for row in rows) else set()
    accepted, about = sum(row["accepted"] is True for row in rows), quantity(len(rows), "picture")
    judgement = Fact("num_accepted", accepted, label="accepted", about=f"of {about}")
    is_list = num_top > 1
    return Report(
        facts=[*run, *([judgement] if judged else [])],
        tables=[
            DataTable(
                "pictures",
                [Field(name, is_shown=name in shown) for name in columns],
                rows,
                is_shown=judged or not is_list,
            ),
            DataTable("top", ["file", "class", "probability"], top, is_shown=is_list),
        ],
    )
