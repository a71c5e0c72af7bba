"""Search files: an experiment, and a space around it. No torch and no Optuna."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.config import (
    check,
    config_hash,
    find_experiment,
    override,
    typed_over,
    with_bases,
    with_code,
)
from vitcli.runner.experiment.places import Places, in_files, on_command_line
from vitcli.runner.experiment.problems import describe, field_names
from vitcli.runner.experiment.purpose import read_purpose
from vitcli.runner.experiment.yaml_text import read_mapping
from vitcli.runner.files import sha256
from vitcli.runner.search.space import (
    Choices,
    Parameter,
    Point,
    Range,
    SearchFields,
    Space,
    point_key,
)
from vitcli.runner.text import did_you_mean

KEY = "search"
"""The field of a file that makes it a search."""
MAX_GRID = 20_000
"""Most points of a grid."""
FIXED = (
    "seed",
    "task.name",
    "train.init",
    *(f"data.{name}" for name in ("name", "val_split", "folds", "resize", "labels", "class_names")),
    *(f"data.{name}" for name in ("skip_bad", "allow_leaks", "corrections", "fit", "group")),
)
"""Fields that no search varies: the seed, where a training begins, the images, and the task, whose
headline number is compared."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A checked search."""

    name: str
    path: Path
    question: str
    hypothesis: str
    raw: Mapping[str, Any]
    """The fields of the experiment, before they were checked."""
    base: ExperimentSpec
    space: Space
    fields: SearchFields
    places: Places
    typed: Mapping[str, Any]
    """The dotted fields that the command line changed."""
    note: str = ""
    """What the user should know about the changes of the command line; empty if nothing."""

    @property
    def threads(self) -> int:
        return self.fields.threads

    @property
    def num_trials(self) -> int:
        return self.fields.trials or int(self.space.size)

    def spec(self, point: Point) -> ExperimentSpec:
        """Return the configuration of a point."""
        return with_teacher(check(override(self.raw, point), self.places))

    def key(self) -> str:
        """Return a name that changes with everything that makes earlier scores incomparable or
        earlier points unknown. The sampler, its seed and the number of trials may change.
        """
        space = {field: repr(parameter) for field, parameter in self.space.parameters.items()}
        rules = self.fields.rules.model_dump(mode="json")
        facts = {"base": config_hash(self.base), "seed": self.base.seed, "space": space}
        return f"{self.name}-{sha256(point_key(facts | {'rules': rules}).encode())[:8]}"


def load_search(name: str, changes: Mapping[str, Any] | None = None) -> Search:
    """Read and check a search by name or path."""
    changes = changes or {}
    path = find_experiment(name)
    document = read_mapping(path)
    documents = with_bases(document, path)
    (raw, note), places = typed_over(with_code(documents), changes), in_files(documents)
    if changes:
        places = Places([*on_command_line(changes, {}).sources, *places.sources], places.otherwise)
    if "variants" in raw:
        raise ConfigError(f"{path}: a study, not a search; run it: vitcli ablate {name}")
    if KEY not in raw:
        raise ConfigError(f"{path}: an experiment without 'search'; train it: vitcli train {name}")
    fields = _check_fields(raw.pop(KEY), places)
    base, purpose = with_teacher(check(raw, places)), read_purpose(document)
    search = Search(
        name=path.stem,
        path=path,
        question=purpose.question,
        hypothesis=purpose.hypothesis,
        raw=raw,
        base=base,
        space=Space({f: _parameter(f, value, places) for f, value in fields.space.items()}),
        fields=fields,
        places=places,
        typed=changes,
        note=note,
    )
    _refuse_fields(search)
    _refuse_settings(search)
    return search


def _check_fields(raw: Any, places: Places) -> SearchFields:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{places.where((KEY,))}: search: should be a mapping with 'space'")
    try:
        return SearchFields.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        loc = (KEY, *first["loc"])
        problem = describe(loc, first["type"], first)
        if first["type"] == "extra_forbidden":
            hint = did_you_mean(str(loc[-1]), SearchFields.model_fields)
            problem = f"unknown field {'.'.join(map(str, loc))!r}{hint}"
        raise ConfigError(f"{places.where(loc)}: {problem}") from error


def _parameter(field: str, value: Any, places: Places) -> Parameter:
    where = f"{places.where((KEY, 'space', field))}: search.space: {field}"
    if isinstance(value, list):
        is_repeated = any(choice in value[:i] for i, choice in enumerate(value))
        is_nested = any(isinstance(choice, list | dict) for choice in value)
        if len(value) < 2 or is_repeated or is_nested:
            what = "give two or more different numbers, texts, true, false or null"
            raise ConfigError(f"{where}: {what}")
        return Choices(tuple(value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: give a list of choices, or {{low: 1, high: 4}}")
    try:
        return Range.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        loc = tuple(part for part in first["loc"] if part not in ("int", "float"))
        raise ConfigError(f"{where}: {describe(loc, first['type'], first)}") from error


def _refuse_fields(search: Search) -> None:
    """Refuse fields of the space and of the rules that the experiment does not have."""
    known = field_names(raw=search.raw)
    chosen = field_names(raw=search.raw, only_chosen=True)
    for field in search.space.parameters:
        where = f"{search.places.where((KEY, 'space', field))}: search.space"
        if field not in known:
            hint = did_you_mean(field, filter(_may_vary, chosen))
            raise ConfigError(f"{where}: unknown field {field!r}{hint}")
        if not _may_vary(field):
            raise ConfigError(f"{where}: a search cannot vary {field!r}")
    for i, pattern in enumerate(search.fields.rules.exclude):
        where = f"{search.places.where((KEY, 'rules', 'exclude', i))}: search.rules.exclude"
        for field in pattern.keys() - search.space.parameters.keys():
            hint = did_you_mean(field, search.space.parameters)
            raise ConfigError(f"{where}: {field!r} is not in the space{hint}")


def _may_vary(field: str) -> bool:
    return field not in FIXED and not field.startswith("pretrain")


def _refuse_settings(search: Search) -> None:
    """Refuse settings that do not fit each other."""
    fields, base = search.fields, search.base
    is_grid = fields.sampler == "grid"
    problems = {
        "data.val_split: a search needs a validation split; set data.val_split": (
            not base.data.val_split
        ),
        "pretrain: a search trains from scratch; remove pretrain": base.pretrain,
        "task.headline: a search compares the accuracy; remove task.headline": (
            base.task.row != TASKS[base.task.name]
        ),
        "train.init: a search trains from scratch; remove train.init": base.train.init,
        f"search.sampler: a grid needs lists of choices, and at most {MAX_GRID:,} points": (
            is_grid and search.space.size > MAX_GRID
        ),
        "search.trials: set the number of configurations to train": (
            not is_grid and fields.trials is None
        ),
        f"search.sample_size: must not be above search.population ({fields.population})": (
            fields.sampler == "evolution" and fields.sample_size > fields.population
        ),
    }
    for problem, is_wrong in problems.items():
        if is_wrong:
            field = problem.partition(":")[0]
            raise ConfigError(f"{search.places.where(tuple(field.split('.')))}: {problem}")
