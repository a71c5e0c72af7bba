"""Search files: an experiment, and a space around it. No torch and no Optuna."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.task import TASKS
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_teacher
from vitcli.runner.experiment.config import (
    check,
    config_hash,
    find_experiment,
    flatten,
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
from vitcli.runner.search.fields import SearchFields
from vitcli.runner.search.space import Choices, Parameter, Point, Range, Space, matches, point_key
from vitcli.runner.text import did_you_mean

KEY = "search"
"""The field of a file that makes it a search."""
FINAL_CHANGES = f"{KEY}.final.changes"
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
    def headline(self) -> Metric:
        return self.base.task.row.headline

    @property
    def threads(self) -> int:
        return self.fields.threads

    @property
    def num_trials(self) -> int:
        return self.fields.trials or int(self.space.size)

    @property
    def is_pareto(self) -> bool:
        return self.fields.cost is not None

    def spec(self, point: Point) -> ExperimentSpec:
        """Return the configuration of a point."""
        return with_teacher(check(override(self.raw, point), self.places))

    def _teachers(self) -> list[str | None]:
        """Return the SHA-256 of the teachers of the base and of the space."""
        specs = [self.base]
        for field in ("task.teacher", "task.teacher.run"):
            choices = getattr(self.space.parameters.get(field), "values", ())
            specs += [self.spec({field: value}) for value in choices]
        return [teacher.sha256 for each in specs if (teacher := each.task.taught_by)]

    def excluded(self, point: Point) -> bool:
        return any(matches(point, pattern) for pattern in self.fields.rules.exclude)

    def study_name(self) -> str:
        """Return the name of the search in Optuna's storage.

        It changes with everything that makes earlier scores incomparable or earlier points
        unknown. The sampler, its seed and the number of trials may change.
        """
        space = {field: repr(each) for field, each in self.space.parameters.items()}
        rules = self.fields.rules.model_dump(mode="json")
        own = {"base": config_hash(self.base), "seed": self.base.seed, "space": space}
        if teachers := self._teachers():
            own["teachers"] = teachers
        key = point_key(own | {"rules": rules, "cost": self.fields.cost})
        return f"{self.name}-{sha256(key.encode())[:8]}"


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
    space = Space(
        {field: _parameter(field, value, places) for field, value in fields.space.items()}
    )
    search = Search(
        name=path.stem,
        path=path,
        question=purpose.question,
        hypothesis=purpose.hypothesis,
        raw=raw,
        base=base,
        space=space,
        fields=fields,
        places=places,
        typed=changes,
        note=note,
    )
    _refuse_fields(search)
    _refuse_settings(search)
    return search


def require_optuna() -> None:
    """Refuse to search without Optuna."""
    if find_spec("optuna") is None:
        raise ConfigError(
            "a search needs the package optuna; in the checkout, type: pip install '.[search]'"
        )


def _check_fields(raw: Any, places: Places) -> SearchFields:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{places.where((KEY,))}: search: should be a mapping with 'space'")
    try:
        return SearchFields.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        loc = (KEY, *first["loc"])
        if first["type"] == "extra_forbidden":
            *_, last = first["loc"]
            hint = did_you_mean(str(last), SearchFields.model_fields)
            problem = f"unknown field {'.'.join(map(str, loc))!r}{hint}"
        else:
            problem = describe(loc, first["type"], first)
        raise ConfigError(f"{places.where(loc)}: {problem}") from error


def _parameter(field: str, value: Any, places: Places) -> Parameter:
    where = f"{places.where((KEY, 'space', field))}: search.space: {field}"
    if isinstance(value, list):
        if len(value) < 2:
            raise ConfigError(f"{where}: needs two choices or more; set one value in the file")
        if any(each in value[:i] for i, each in enumerate(value)):
            raise ConfigError(f"{where}: a value appears twice")
        if any(isinstance(each, list | dict) for each in value):
            raise ConfigError(f"{where}: choices are numbers, texts, true, false or null")
        return Choices(values=tuple(value))
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: give a list of choices, or {{low: 1, high: 4}}")
    return _range(value, where)


def _range(value: Mapping[str, Any], where: str) -> Range:
    try:
        found = Range.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        loc = tuple(part for part in first["loc"] if part not in ("int", "float"))
        raise ConfigError(f"{where}: {describe(loc, first['type'], first)}") from error
    if found.low >= found.high or (found.log and (found.low <= 0 or found.step)):
        raise ConfigError(f"{where}: low must be below high; log needs low above 0 and no step")
    if found.is_integer and isinstance(found.step, float):
        raise ConfigError(f"{where}: step must be an integer, as low and high are")
    try:
        size = found.size
    except ArithmeticError as error:
        problem = "has too many values; choose a larger step, or a smaller range"
        raise ConfigError(f"{where}: {problem}") from error
    if size < 2:
        raise ConfigError(f"{where}: has one value, {found.low:g}; choose a smaller step")
    return found


def _refuse_fields(search: Search) -> None:
    """Refuse fields of the space and of the rules that the experiment does not have."""
    known = field_names(raw=search.raw)
    own = field_names(raw=search.raw, only_chosen=True)
    for field in search.space.parameters:
        where = f"{search.places.where((KEY, 'space', field))}: search.space"
        if field not in known:
            hint = did_you_mean(field, filter(_may_vary, own))
            raise ConfigError(f"{where}: unknown field {field!r}{hint}")
        if not _may_vary(field):
            raise ConfigError(f"{where}: a search cannot vary {field!r}")
    _refuse_final_changes(search)
    for i, pattern in enumerate(search.fields.rules.exclude):
        for field in pattern:
            if field not in search.space.parameters:
                where = search.places.where((KEY, "rules", "exclude", i))
                hint = did_you_mean(field, search.space.parameters)
                raise ConfigError(
                    f"{where}: search.rules.exclude: {field!r} is not in the space{hint}"
                )


def _may_vary(field: str) -> bool:
    return field not in FIXED and not field.startswith("pretrain")


def _refuse_final_changes(search: Search) -> None:
    """Refuse, before any training, changes with which the final stage could not train the base."""
    if search.fields.final is None:
        return
    changes, places = flatten(search.fields.final.changes), search.places
    places = Places([places.below(FINAL_CHANGES), *places.sources], places.otherwise)
    for field in changes:
        if field in search.space.parameters or field in FIXED:
            problem = f"the final stage cannot change {field!r}"
            raise ConfigError(f"{places.where((field,))}: {FINAL_CHANGES}: {problem}")
    check(override(search.raw, changes | {"data.val_split": 0}), places)


def _refuse_settings(search: Search) -> None:
    """Refuse settings that do not fit each other."""
    fields, base, seed = search.fields, search.base, search.base.seed
    is_grid, is_evolution = fields.sampler == "grid", fields.sampler == "evolution"
    is_endless = not search.space.is_finite or search.space.size > MAX_GRID
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
            is_grid and is_endless
        ),
        "search.trials: set the number of configurations to train": (
            not is_grid and fields.trials is None
        ),
        "search.sampler: nsga2 needs a second objective; set search.cost: parameters": (
            fields.sampler == "nsga2" and not fields.cost
        ),
        "search.cost: evolution has one objective; set search.sampler: nsga2": (
            is_evolution and fields.cost
        ),
        "search.pruning: pruning needs one objective; remove search.cost": (
            fields.pruning != "none" and fields.cost
        ),
        f"search.sample_size: must not be above search.population ({fields.population})": (
            is_evolution and fields.sample_size > fields.population
        ),
    }
    for name, part in (("repeats", fields.repeats), ("final", fields.final)):
        seeds, field = part.seeds if part else [], f"search.{name}.seeds"
        own = f"{field}: the search itself trains with seed {seed}; choose fresh seeds"
        problems[f"{field}: a seed appears twice"] = len(set(seeds)) < len(seeds)
        problems[own] = seed in seeds
    for problem, is_wrong in problems.items():
        if is_wrong:
            field = problem.partition(":")[0]
            raise ConfigError(f"{search.places.where(tuple(field.split('.')))}: {problem}")
