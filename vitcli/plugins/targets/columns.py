"""The columns ``labels`` and ``target`` of a table of pictures.

Axes: N pictures, K classes, or the one number of a picture.
"""

import json
import re
from collections.abc import Container, Sequence

import torch
from torch import Tensor

from vitcli.runner.data.extras import Cell, ColumnReader
from vitcli.runner.data.labels import in_order, refuse_names, same_class
from vitcli.runner.errors import InputError
from vitcli.runner.text import did_you_mean, printable

WORD = re.compile(r"[^,/\s(){}'\"]+")
"""A label in a list whose signs are not ``;`` or ``|``."""
OBJECT = re.compile(r"\{.*:|\{\s*\}|(c|character)\(\s*[\"']", re.DOTALL)
"""How a JSON object begins, or a vector of R."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def read_labels(
    cells: Sequence[Cell], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the classes, in order if none are given, and 1 for those of a picture.

    A cell has labels with ``;`` or ``|`` between them, or a JSON list, or nothing: no class.
    """
    lists = [labels_in(at, text) for at, text in cells]
    names = [*(class_names or in_order({label for labels in lists for label in labels}))]
    if class_names is None:
        table = cells[0][0].rpartition(", line ")[0]
        if not names:
            raise InputError(f"{table}: no training picture has a label")
        try:
            refuse_names(names)
        except ValueError as error:
            raise InputError(f"{table}: {error}") from error
    place = {same_class(name): column for column, name in enumerate(names)}
    known, words = {*place}, {word for name in names for word in WORD.findall(name)}
    has_lists = any(len(row) > 1 for row in lists) or any(x.startswith("[") for _, x in cells)
    if class_names is None and not has_lists and len(words) < len(names):
        known |= words  # such as "haze primary", where no picture is only "primary"
    numbers = torch.zeros(len(cells), len(names))
    for row, (at, text), labels in zip(numbers, cells, lists, strict=True):
        parts = [part for label in labels for part in joined(label, known) or [label]]
        if parts != labels and not text.startswith("["):
            hint = printable(f"{'|'.join(parts)}, or {json.dumps(labels, ensure_ascii=False)}")
            raise InputError(f"{at}: which labels are in {printable(text)!r}? Write {hint}")
        for label in labels:
            if label not in place:
                hint = did_you_mean(label, names) or f"; there are {printable(', '.join(names))}"
                raise InputError(
                    f"{at}: no training picture has the class {printable(label)!r}{hint}"
                )
            row[place[label]] = 1
    return tuple(names), numbers


def joined(label: str, names: Container[str]) -> list[str]:
    """Return the classes that a label joins by commas, slashes or blanks, or has in brackets."""
    inner = re.sub(r"^\((.*)\)$|^\{(.*)\}$", r"\1\2", label).rstrip(",")
    for sign in (",", "/", r"[,/\s]+"):
        parts = [re.sub(r"^(['\"])(.*)\1$", r"\2", x.strip()) for x in re.split(sign, inner)]
        if parts != [label] and all(part in names for part in parts):
            return parts
    return []


def labels_in(at: str, text: str) -> list[str]:
    if OBJECT.match(text):
        raise InputError(f"{at}: labels {printable(text)!r} are no names; write | between names")
    if not text.startswith("["):
        return [label for label in map(same_class, re.split("[;|]", text)) if label]
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{at}: labels {printable(text)!r} are no JSON list: {error}") from error
    if not all(isinstance(label, str) and same_class(label) for label in labels):
        raise InputError(f"{at}: labels {printable(text)!r} are no JSON list of names")
    return [*map(same_class, labels)]


def read_targets(cells: Sequence[Cell], _: object) -> tuple[tuple[str, ...], Tensor]:
    """Return the name of the one output, and the number of each picture, (N, 1)."""
    numbers = [[number_in(at, text)] for at, text in cells]
    return ("target",), torch.tensor(numbers, dtype=torch.float32).view(len(cells), 1)


def number_in(at: str, text: str) -> float:
    if not text:
        raise InputError(f"{at}: the target is empty; write a number, or remove the line")
    hint = "; write it as 1234.5, no comma" if NUMBER.fullmatch(text.replace(",", ".")) else ""
    if not NUMBER.fullmatch(text):
        raise InputError(f"{at}: the target {printable(text)!r} is no finite number{hint}")
    if not torch.tensor(float(text)).isfinite():
        raise InputError(f"{at}: the target {printable(text)!r} is too large")
    return float(text)


LABELS = ColumnReader(
    column="labels",
    read_cells=read_labels,
    task="multilabel",
    is_classes=True,
    random=lambda count, generator: torch.ones(count, 1),
)
TARGET = ColumnReader(
    column="target",
    read_cells=read_targets,
    task="regress",
    random=lambda count, generator: torch.randn(count, 1, generator=generator),
)
