"""Search files: an experiment, and a space around it. No torch and no Optuna."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.core.spec.task import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment import config, yaml_text
from vitcli.runner.experiment.family import switch_family
from vitcli.runner.experiment.problems import KINDS, describe, field_names
from vitcli.runner.files import sha256
from vitcli.runner.study.definition import EVALUATIONS, MAX_SEED, MORE_EVALUATIONS
from vitcli.runner.study.plan import model_size
from vitcli.runner.text import did_you_mean, quantity

KEY = "search"
"""The field of a file that makes it a search."""
MAX_GRID = 20_000
FIXED = (
    *("seed", "task.name", "task.headline", "train.init", "train.early_stopping"),
    *("train.limit_batches", "pretrain", "data."),
)
"""Beginnings of the fields that no search varies, except for ``data.augment``."""

Point = dict[str, Any]
"""Dotted field -> value."""


class Values(Spec):
    """The values that a field may take: a list of choices, or the numbers between two ends."""

    choices: list[Any] | None = None
    """Numbers, texts, true, false or null. A list without a name stands for them."""
    low: float | int | None = None
    """Smallest value. Two integers make a range of integers."""
    high: float | int | None = None
    """Largest value."""
    step: float | int | None = Field(None, gt=0)
    """Distance between two values; unset takes every number, or every integer between integers."""
    log: bool = False
    """Draw on a logarithmic scale, as for a learning rate."""

    @property
    def text(self) -> str:
        if self.choices is not None:
            return ", ".join(c if isinstance(c, str) else json.dumps(c) for c in self.choices)
        step = f" in steps of {self.step:g}" if self.step else ""
        return f"{self.low:g} to {self.high:g}{step}{' (log)' if self.log else ''}"

    @model_validator(mode="before")
    @classmethod
    def _name_choices(cls, raw: Any) -> Any:
        return raw if isinstance(raw, Mapping) else {"choices": raw}

    @model_validator(mode="after")
    def _check(self) -> "Values":
        low, high, step = self.low, self.high, self.step
        if self.choices is not None:
            is_nested = any(isinstance(choice, list | dict) for choice in self.choices)
            if is_nested or not 2 <= len(set(self.choices)) == len(self.choices):
                raise ValueError("give two or more different numbers, texts, true, false or null")
        elif low is None or high is None:
            raise ValueError("give a list of choices, or {low: 1, high: 4}")
        elif low >= high or (self.log and (low <= 0 or step)) or low + (step or 0) > high:
            raise ValueError("low must be a step below high; log needs low above 0 and no step")
        elif isinstance(low, int) and isinstance(high, int) and isinstance(step, float):
            raise ValueError("step must be an integer, as low and high are")
        return self


class RuleFields(Spec):
    """Which configurations are valid, besides the rules that the fields themselves have."""

    max_parameters: int | None = Field(None, ge=1)
    """Number of parameters, at most; unset allows any."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out: dotted field -> value, or list of values. A configuration is left
    out if all fields of one entry match."""

    def excludes(self, point: Point) -> bool:
        return any(
            all(
                point[field] in (wanted if isinstance(wanted, list) else [wanted])
                for field, wanted in pattern.items()
            )
            for pattern in self.exclude
        )


class SearchFields(Spec):
    """Fields of a search file under ``search``."""

    space: dict[str, Values] = Field(min_length=1)
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

    @property
    def size(self) -> float:
        """Return the number of points, valid or not; infinity if a field has a range."""
        return math.prod(len(v.choices) if v.choices else math.inf for v in self.space.values())

    def points(self) -> Iterator[Point]:
        """Yield every point, the last field fastest. Every field must have choices."""
        for values in product(*(values.choices or () for values in self.space.values())):
            yield dict(zip(self.space, values, strict=True))

    @model_validator(mode="after")
    def _check(self) -> "SearchFields":
        for field in {field for pattern in self.rules.exclude for field in pattern}:
            if field not in self.space:
                raise ValueError(f"rules.exclude: {field!r} is not in the space")
        if self.sampler == "grid" and self.size > MAX_GRID:
            raise ValueError(f"sampler: a grid takes lists of choices, {MAX_GRID:,} points at most")
        if self.sampler != "grid" and self.trials is None:
            raise ValueError("trials: set the number of configurations to train")
        return self


class SearchFile(Spec):
    """Fields of a search file that an experiment file does not have."""

    search: SearchFields | None = None
    """Space, rules and budget of a search; unset is no search."""


@dataclass(frozen=True, kw_only=True)
class Search:
    name: str
    path: Path
    purpose: yaml_text.Purpose
    raw: Mapping[str, Any]
    """The fields of the experiment, before they were checked."""
    base: ExperimentSpec
    fields: SearchFields
    places: yaml_text.Places
    typed: Mapping[str, Any]
    note: str
    """What the user should know about the changes of the command line; empty if nothing."""

    @property
    def threads(self) -> int:
        return self.fields.threads

    @property
    def num_trials(self) -> int:
        return self.fields.trials or int(self.fields.size)

    def spec(self, point: Point) -> ExperimentSpec:
        return with_teacher(config.parse_experiment(config.override(self.raw, point), self.places))

    def key(self) -> str:
        """Return a name that changes with everything that makes earlier scores incomparable or
        earlier points unknown. The sampler, its seed and the number of trials may change.
        """
        facts = self.fields.model_dump(mode="json", include={"space", "rules"})
        facts |= {"base": config.config_hash(self.base), "seed": self.base.seed}
        return f"{self.name}-{sha256(point_key(facts).encode())[:8]}"


def load_search(name: str, changes: Mapping[str, Any] | None = None) -> Search:
    changes = changes or {}
    path = config.find_experiment(name)
    document = yaml_text.read_mapping(path)
    raw, documents = config.merge_with_bases(path, document)
    raw |= config.load_own_code(documents) if "code" in raw else {}
    raw, note = switch_family(raw, changes)
    raw = config.override(raw, changes)
    written = yaml_text.in_files(documents)
    places = yaml_text.Places(
        [*yaml_text.on_command_line(changes, {}).sources, *written.sources], written.otherwise
    )
    if "variants" in raw:
        raise ConfigError(f"{path}: a study, not a search; run it: vitcli ablate {name}")
    if KEY not in raw:
        raise ConfigError(f"{path}: an experiment without 'search'; train it: vitcli train {name}")
    fields = _check_fields(raw.pop(KEY), places)
    base = with_teacher(config.parse_experiment(raw, places))
    for field in fields.space:
        if field not in field_names(raw=raw) or not _may_vary(field):
            known = filter(_may_vary, field_names(raw=raw, only_chosen=True))
            where = f"{places.where((KEY, 'space', field))}: search.space"
            raise ConfigError(f"{where}: cannot vary {field!r}{did_you_mean(field, known)}")
    problems = {
        "data.val_split": (not base.data.val_split, "a search needs a validation split"),
        "pretrain": (base.pretrain, "a search trains from scratch"),
        "train.init": (base.train.init, "a search trains from scratch"),
        "train.early_stopping": (
            base.train.early_stopping and fields.space.keys() & EVALUATIONS,
            MORE_EVALUATIONS.format("the space"),
        ),
        "task.headline": (base.task.row != TASKS[base.task.name], "a search compares the accuracy"),
    }
    for field, (is_wrong, problem) in problems.items():
        if is_wrong:
            raise ConfigError(f"{places.where(tuple(field.split('.')))}: {field}: {problem}")
    return Search(
        name=path.stem,
        path=path,
        purpose=yaml_text.read_purpose(document),
        raw=raw,
        base=base,
        fields=fields,
        places=places,
        typed=changes,
        note=note,
    )


def check_search(name: str) -> tuple[int, str]:
    """Return the base's number of parameters, and what the search is over."""
    search = load_search(name)
    parameters = model_size(search.base)
    size = f"{len(search.fields.space)} fields, {quantity(search.num_trials, 'trial')}"
    return parameters, f"a search over {size}; base: {parameters:,} parameters"


def _check_fields(raw: Any, places: yaml_text.Places) -> SearchFields:
    try:
        return SearchFields.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        loc = (KEY, *(part for part in first["loc"] if part not in KINDS))
        problem = describe(loc, first["type"], first)
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(str(loc[-1]), SearchFields.model_fields)
            problem = f"unknown field {'.'.join(map(str, loc))!r}{hint}"
        raise ConfigError(f"{places.where(loc)}: {problem}") from error


def _may_vary(field: str) -> bool:
    return field.startswith("data.augment") or not field.startswith(FIXED)


def point_key(point: Any) -> str:
    return json.dumps(point, sort_keys=True)
