"""The space of a search: what may vary, and how a point becomes a configuration. No torch."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

from pydantic import Field

from vitcli.core.spec import Spec

Point = dict[str, Any]
"""Dotted field -> value."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A field that takes one of several values."""

    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        return len(self.values)

    @property
    def text(self) -> str:
        return ", ".join(map(as_label, self.values))


class Range(Spec):
    """A field that takes the numbers between two ends."""

    low: int | float
    """Smallest value. Two integers make a range of integers."""
    high: int | float
    """Largest value."""
    step: int | float | None = Field(None, gt=0)
    """Distance between two values; unset takes every number, or every integer between integers."""
    log: bool = False
    """Draw on a logarithmic scale, as for a learning rate."""

    @property
    def is_integer(self) -> bool:
        """Return whether only integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def size(self) -> float:
        """Return the number of values; infinity for real numbers."""
        step = self.step or (1 if self.is_integer else None)
        low, high, each = (Decimal(str(number)) for number in (self.low, self.high, step or 0))
        return int((high - low) // each) + 1 if step else math.inf

    @property
    def text(self) -> str:
        step = f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{step}{' (log)' if self.log else ''}"


Parameter = Choices | Range


@dataclass(frozen=True)
class Space:
    """Dotted field -> the values that it may take."""

    parameters: Mapping[str, Parameter]

    @property
    def size(self) -> float:
        """Return the number of points, valid or not; infinity if a field takes real numbers."""
        return math.prod(each.size for each in self.parameters.values())

    @property
    def is_finite(self) -> bool:
        """Return whether every field has choices, so that ``points`` yields every point."""
        return all(isinstance(each, Choices) for each in self.parameters.values())

    def points(self) -> Iterator[Point]:
        """Yield every point, the last field fastest. Every field must have choices."""
        choices = [each.values for each in self.parameters.values() if isinstance(each, Choices)]
        for values in product(*choices):
            yield dict(zip(self.parameters, values, strict=True))

    def short_names(self) -> dict[str, str]:
        """Return field -> its last part, or the whole field where the last part is ambiguous."""
        last = {field: field.rpartition(".")[2] for field in self.parameters}
        ends = [*last.values()]
        return {field: name if ends.count(name) == 1 else field for field, name in last.items()}


def point_key(point: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal points only."""
    return json.dumps(point, sort_keys=True)


def as_label(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def matches(point: Point, pattern: Mapping[str, Any]) -> bool:
    """Return whether every field of a pattern has its value, or one of its values, in a point."""
    return all(
        point[field] in wanted if isinstance(wanted, list) else point[field] == wanted
        for field, wanted in pattern.items()
    )
