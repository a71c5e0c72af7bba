"""The space of a search: what may vary, and how a point becomes a configuration. No torch."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np

Point = dict[str, Any]
"""Dotted field -> value."""
MAX_CHOICES = 1000


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

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a random value; all are equally probable."""
        return self.values[int(rng.integers(len(self.values)))]


@dataclass(frozen=True, kw_only=True)
class Range:
    """A field that takes the numbers between two ends."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

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

    def draw(self, rng: np.random.Generator) -> Any:
        """Return a random value; on a logarithmic scale if ``log`` is set."""
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
            return round(value) if self.is_integer else value
        if math.isinf(self.size):
            return rng.uniform(self.low, self.high)
        return self.low + int(rng.integers(int(self.size))) * (self.step or 1)


Parameter = Choices | Range


@dataclass(frozen=True)
class Space:
    """Dotted field -> the values that it may take."""

    parameters: Mapping[str, Parameter]

    @property
    def size(self) -> float:
        """Return the number of points, valid or not; infinity if a field takes real numbers."""
        return math.prod(each.size for each in self.parameters.values())

    def draw(self, rng: np.random.Generator) -> Point:
        """Return a random point."""
        return {field: each.draw(rng) for field, each in self.parameters.items()}

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


def point_key(point: Point) -> str:
    """Return a text that is equal for equal points only."""
    return json.dumps(point, sort_keys=True)


def as_label(value: Any) -> str:
    """Return a value as it is shown in a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def describe_point(point: Point, names: Mapping[str, str]) -> str:
    """Return a point in words, such as ``depth=4 embed_dim=64``."""
    return " ".join(f"{names[field]}={as_label(value)}" for field, value in point.items())


def matches(point: Point, pattern: Mapping[str, Any]) -> bool:
    """Return whether every field of a pattern has its value, or one of its values, in a point."""
    return all(
        point[field] in wanted if isinstance(wanted, list) else point[field] == wanted
        for field, wanted in pattern.items()
    )
