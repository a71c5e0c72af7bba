"""What a source contains, and what was found about it."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["component", "option", "figure", "theory", "gap", "claim", "result"]
Word = Literal["holds", "in part", "refuted", "undecided", "no verdict"]

SOURCES = {"S0": "training notes", "S1": "lecture notes", "S2": "course report"}
"""First part of an id -> short name of the source."""
JUDGED = ("claim", "result")
"""Kinds of items that get a verdict."""


@dataclass(frozen=True)
class Item:
    """A statement, part, option, figure or number in a source."""

    id: str
    kind: Kind
    text: str
    where: str
    """Section of the source."""
    command: str
    """Command that shows the item or, for a claim or a result, that measures it."""
    test: str = ""
    """The observation that would refute a claim or a result."""

    @property
    def source(self) -> str:
        return SOURCES[self.id[:2]]

    @property
    def is_judged(self) -> bool:
        return self.kind in JUDGED


@dataclass(frozen=True)
class Finding:
    """The verdict on a claim or a result, and what it follows from."""

    verdict: Word
    found: str
    """The measured or computed numbers, with interval and sample size where there is one; or the
    reason why there is no verdict."""
    hardware: str = "computed, on any CPU"
    setting: str = ""
    """Setting in which trainings gave the verdict, such as ``after 5 epochs``; a computed verdict
    has none."""

    @property
    def said(self) -> str:
        """Return the verdict with its setting: ``refuted after 5 epochs``."""
        return f"{self.verdict} {self.setting}".strip()
