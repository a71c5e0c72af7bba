"""Counts of what a piece of code asked of the stub GPU. Use it in a process on the stub."""

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from vitcli.version import PACKAGE

KINDS = (
    *("launch", "captured", "graph_launch", "h2d", "d2h", "d2d", "sync", "memset", "malloc"),
    *("unpinned", "refused", "unknown"),
)
"""Kinds of calls, in the order of ``source/stub.h``, which explains them."""
PLACED = ("h2d", "d2h", "sync", "unpinned", "refused")
"""Kinds whose lines are noted. To find the line of each call takes time."""
Call = tuple[str, str]


class Seen:
    def __init__(self) -> None:
        self.calls: Counter[Call] = Counter()
        self.places: Counter[tuple[str, str]] = Counter()
        """Number of calls by kind and line, such as ("sync", "vitcli/core/data/batches.py:126")."""

    def count(self, *kinds: str) -> int:
        assert {*kinds} <= {*KINDS}, "a misspelt kind would count nothing"
        return sum(number for (kind, _), number in self.calls.items() if kind in kinds)


@contextlib.contextmanager
def counting() -> Iterator[Seen]:
    seen, before = Seen(), totals()

    def note(kind: int, name: bytes, size: int) -> None:
        seen.places[KINDS[kind], place()] += 1

    hook = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_long)(note)
    library().stub_hook(hook, sum(1 << KINDS.index(kind) for kind in PLACED))
    try:
        yield seen
    finally:
        library().stub_hook(None, 0)
        seen.calls = totals() - before


@cache
def library() -> Any:
    loaded = ctypes.CDLL(None)
    assert hasattr(loaded, "stub_hook"), "this process does not run on the stub GPU"
    loaded.stub_row.restype = ctypes.c_char_p
    return loaded


def totals() -> Counter[Call]:
    found: Counter[Call] = Counter()
    kind, number, size = ctypes.c_int(), ctypes.c_long(), ctypes.c_long()
    for i in range(library().stub_rows()):
        name = library().stub_row(i, ctypes.byref(kind), ctypes.byref(number), ctypes.byref(size))
        found[KINDS[kind.value], name.decode()] = number.value
    return found


def place() -> str:
    """Return the innermost line of vitcli, or of other Python; autograd's threads run none."""
    frame, inner = sys._getframe(1).f_back, ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE.parent)}:{frame.f_lineno}"
        inner = inner or f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return inner or "autograd"
