"""The fields of a search file: the space, its rules and the sampler. No torch and no Optuna."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from pydantic import Field, model_validator

from vitcli.core.spec import Spec
from vitcli.runner.experiment.seeds import MAX_SEED

Point = dict[str, Any]
"""Dotted field -> value."""


class RuleFields(Spec):
    """Which configurations are valid, besides the rules that the fields themselves have."""

    max_parameters: int | None = Field(None, ge=1)
    """Number of parameters, at most; unset allows any."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: dotted field -> value, or list of values. A configuration is left
    out if all fields of one entry match."""


class SearchFields(Spec):
    """Fields of a search file under ``search``."""

    space: dict[str, Any] = Field(min_length=1)
    """Dotted field -> list of choices, or a range: ``{low: 1.0e-4, high: 1.0e-2, log: true}``."""
    rules: RuleFields = RuleFields()
    """Limits, and combinations to leave out. A point that breaks a rule does not count as a
    trial."""
    sampler: Literal["random", "grid", "tpe", "evolution"] = "tpe"
    """``grid`` takes every configuration once; ``evolution`` is regularised (ageing) evolution."""
    population: int = Field(10, ge=2, le=10_000)
    """Size of the population of ``evolution``."""
    sample_size: int = Field(5, ge=1, le=10_000)
    """Number of members of the population of which ``evolution`` mutates the best."""
    trials: int | None = Field(None, ge=1, le=100_000)
    """Number of configurations to train; unset trains all configurations of a grid."""
    pruning: Literal["none", "median"] = "none"
    """Stop trials early whose score is below the median of the others at the same epoch."""
    seed: int = Field(0, ge=0, le=MAX_SEED)
    """Random seed of the sampler."""
    threads: int = Field(1, ge=1, le=256)
    """CPU threads of each trial."""


class SearchFile(Spec):
    """Fields of a search file that an experiment file does not have."""

    search: SearchFields | None = None
    """Space, rules and budget of a search; unset is no search."""


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
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def text(self) -> str:
        step = f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{step}{' (log)' if self.log else ''}"

    @model_validator(mode="after")
    def _check(self) -> "Range":
        if self.low >= self.high or (self.log and (self.low <= 0 or self.step)):
            raise ValueError("low must be below high; log needs low above 0 and no step")
        if self.is_integer and isinstance(self.step, float):
            raise ValueError("step must be an integer, as low and high are")
        if self.low + (self.step or 0) > self.high:
            raise ValueError(f"has one value, {self.low:g}; choose a smaller step")
        return self


@dataclass(frozen=True)
class Choices:
    """A field that takes one of several values."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        return ", ".join(map(as_label, self.values))


Parameter = Choices | Range


@dataclass(frozen=True)
class Space:
    """Dotted field -> the values that it may take."""

    parameters: Mapping[str, Parameter]

    @property
    def size(self) -> float:
        """Return the number of points, valid or not; infinity if a field has a range."""
        sizes = (
            len(parameter.values) if isinstance(parameter, Choices) else math.inf
            for parameter in self.parameters.values()
        )
        return math.prod(sizes)

    def points(self) -> Iterator[Point]:
        """Yield every point, the last field fastest. Every field must have choices."""
        parameters = self.parameters.values()
        for values in product(*(p.values for p in parameters if isinstance(p, Choices))):
            yield dict(zip(self.parameters, values, strict=True))


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
