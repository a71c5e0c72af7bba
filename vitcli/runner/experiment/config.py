"""The one door between text and experiments: YAML files and ``--set`` in, checked specs out."""

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from vitcli.core.spec import ExperimentSpec, ModelSpec, TaskSpec
from vitcli.core.spec.old_fields import FAMILY
from vitcli.core.spec.rows import choice_of
from vitcli.core.spec.tasks import TASK
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.yaml_text import Document, dump, read_mapping
from vitcli.version import PACKAGE

FORMAT = 2
"""Raised when the meaning of a field or the bits of a training change, so that old results are not
taken for new ones. 1: up to 0.7.0. 2: initial weights and the randomness of a step by key."""
MAX_BASES = 4
SIZES = ("img_size", "in_chans", "num_classes")
"""Fields of the model that follow the data set unless they are set."""
ROWS = ("variants", "tune", "reference")
"""What a study does not take from its base once it has variants of its own."""
STATISTICS = ("mean", "std")
"""Fields of the data that follow the data set unless they are set."""


class DataFacts(Protocol):
    """What a model must know about its data."""

    @property
    def img_size(self) -> tuple[int, int]: ...
    @property
    def in_chans(self) -> int: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Experiment:
    """A named spec; ``changed`` says that the command line differs from the file."""

    name: str
    spec: ExperimentSpec
    path: Path
    changed: bool = False
    variant: str | None = None
    """The row of a study that this is."""


def folders() -> list[Path]:
    """Where experiments are found by name: here, then in the package, then in its checkout."""
    places = [Path("experiments"), PACKAGE / "experiments", PACKAGE.parent / "experiments"]
    return [place for place in places if place.is_dir()]


def experiment_files() -> dict[str, Path]:
    """Name -> file for everything that can be named; the first folder wins."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.yaml")):
            if path.is_file():
                found.setdefault(path.stem, path)
    return found


def find_experiment(name: str, beside: Path | None = None) -> Path:
    """The file that a name or path stands for."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = (beside / name) if beside else Path(name)
        if not path.is_file():
            raise ConfigError(f"{path}: no such experiment file")
        return path
    files = experiment_files()
    if beside and (beside / f"{name}.yaml").is_file():
        return beside / f"{name}.yaml"
    if name not in files:
        raise ConfigError(
            f"no experiment is called {name!r}{did_you_mean(name, files)}"
            " ('vitcli experiments ls' lists them)"
        )
    return files[name]


def typed_name(path: Path) -> str:
    """What to type for an experiment's file: its name where it is a shipped one."""
    return path.stem if experiment_files().get(path.stem) == path else path.name


def did_you_mean(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def load_experiment(name: str, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment by name or path and apply dotted ``changes`` before it is checked."""
    path = find_experiment(name)
    document = read_mapping(path)
    raw = resolve_bases(document, path)
    if "variants" in raw:
        command = f"vitcli ablate {typed_name(path)}"
        raise ConfigError(f"{path}: this is a study; run it with '{command}'")
    spec = check(raw, document, is_stored=bool(changes))
    if not changes:
        return Experiment(path.stem, spec, path)
    changed = check(override(raw, changes), Document("", "--set"))
    is_changed = changed.replace(seed=spec.seed) != spec
    return Experiment(path.stem, changed, path, is_changed)


def resolve_bases(document: Document, path: Path, depth: int = 0) -> dict[str, Any]:
    """Lay the file over the experiment its ``base:`` names, if any."""
    data = dict(document.data)
    base = data.pop("base", None)
    if base is None:
        return data
    if not isinstance(base, str) or depth == MAX_BASES:
        raise ConfigError(
            f"{document.where(('base',))}: base names one experiment, not in a circle"
        )
    base_path = find_experiment(base, beside=path.parent)
    below = resolve_bases(read_mapping(base_path), base_path, depth + 1)
    if "variants" in data:  # a study's own rows replace those of its base, and what belongs to them
        below = {key: value for key, value in below.items() if key not in ROWS}
    return merge(below, data)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another; nested mappings are merged, everything else is replaced."""
    out = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merge(out[key], value) if both else value
    return out


def override(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with dotted fields replaced."""
    out = dict(data)
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        inner = out.get(head)
        if rest:
            value = override(inner if isinstance(inner, Mapping) else {}, {rest: value})
        out[head] = value
    return out


def parse_set(text: str) -> dict[str, Any]:
    """``"model.depth=4"`` -> ``{"model.depth": 4}``."""
    path, equals, value = text.partition("=")
    if not (path.strip() and equals):
        raise ConfigError(f"--set wants FIELD=VALUE, such as model.depth=4, got {text!r}")
    data = Document(f"value: {value}", f"--set {text!r}").data
    if set(data) != {"value"}:
        raise ConfigError(f"--set wants one FIELD=VALUE, got {text!r}")
    return {path.strip(): data["value"]}


def check(raw: Mapping[str, Any], document: Document, *, is_stored: bool = False) -> ExperimentSpec:
    """Validate a raw mapping; the first problem becomes one line that names field and place.

    A configuration that ``is_stored`` may hold what is refused for a new training.
    """
    try:
        spec = ExperimentSpec.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = "--set" if document.origin == "--set" else document.where(first["loc"])
        raise ConfigError(
            f"{where}: {describe(first['loc'], first['type'], first, raw)}"
        ) from error
    if spec.refusal and not is_stored:
        field = tuple(spec.refusal.partition(":")[0].split("."))
        where = "--set" if document.origin == "--set" else document.where(field)
        raise ConfigError(f"{where}: {spec.refusal}")
    return spec


def describe(
    loc: tuple[int | str, ...],
    kind: str,
    error: Mapping[str, Any],
    raw: Mapping[str, Any] | None = None,
) -> str:
    """Say what is wrong with one field of ``raw``, and what was probably meant."""
    field = ".".join(map(str, loc)) or "experiment"
    if kind == "extra_forbidden":
        return f"unknown field {field!r}{_meant(loc, raw or {})}"
    if kind == "missing":
        return f"{field!r} is missing"
    if kind == "too_short":
        return f"{field}: needs {error['ctx']['min_length']} at least"
    message = error["msg"].removeprefix("Value error, ")
    message = message.removeprefix("Input should be ").strip()
    message = {"dict_type": "a mapping, name: value"}.get(kind, message)
    given = error["input"]
    if kind == "value_error":
        return f"{field}: {message}" if loc else message
    shown = (
        repr(given)
        if isinstance(given, str | int | float | bool | None)
        else "a mapping"
        if isinstance(given, Mapping)
        else "a list"
    )
    return f"{field}: should be {message}, got {shown}"


def _meant(loc: tuple[int | str, ...], raw: Mapping[str, Any]) -> str:
    """Suggest a field beside the unknown one, of the chosen family first, or one elsewhere."""
    *group, last = map(str, loc)
    known = field_names(raw=raw)
    own = field_names(raw=raw, only_chosen=True)
    for names in (own, known):
        siblings = [name.split(".")[-1] for name in names if name.split(".")[:-1] == group]
        if close := difflib.get_close_matches(last, siblings, n=1):
            return f"; did you mean {close[0]!r}?"
    elsewhere = {name.split(".")[-1]: name for name in reversed(known)}
    close = difflib.get_close_matches(last, elsewhere, n=1)
    return f"; did you mean {elsewhere[close[0]]!r}?" if close else ""


def field_names(
    spec: type[BaseModel] = ExperimentSpec,
    prefix: str = "",
    raw: Mapping[str, Any] | None = None,
    *,
    only_chosen: bool = False,
) -> list[str]:
    """Every field of an experiment, dotted, those of every model family and task among them.

    The fields of the family and task that ``raw`` asks for come first, or alone.
    """
    names: list[str] = []
    for name, field in spec.model_fields.items():
        names.append(prefix + name)
        inner = (raw or {}).get(name)
        kinds = _specs_in(field, inner)
        for kind in kinds[:1] if only_chosen else kinds:
            below = inner if isinstance(inner, Mapping) else None
            names += field_names(kind, f"{prefix}{name}.", below, only_chosen=only_chosen)
    return [*dict.fromkeys(names)]


def _specs_in(field: FieldInfo, raw: Any) -> list[type[BaseModel]]:
    """The classes that a field's spec may have, the one that ``raw`` asks for first."""
    choice = choice_of(field)
    if choice is None:
        kind = field.annotation
        return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []
    first = choice.name_of(raw)
    return [choice.table[name].spec for name in dict.fromkeys((first, *choice.table))]


def fit_to_data(spec: ExperimentSpec, data: DataFacts) -> ExperimentSpec:
    """Fill what follows the data set; a field that was set to something else is a clash."""
    facts = {name: getattr(data, name) for name in SIZES}
    for name, fact in facts.items():
        _refuse_clash(f"model.{name}", getattr(spec.model, name), fact, spec.data.name)
    _refuse_clash("data.class_names", spec.data.class_names, data.class_names, spec.data.name)
    for name in STATISTICS:
        given = getattr(spec.data, name)
        if given is not None and len(given) != data.in_chans:
            raise ConfigError(f"data.{name} has {len(given)} values for {data.in_chans} channels")
    try:
        return spec.replace(
            model=spec.model.replace(**facts),
            data=spec.data.replace(class_names=data.class_names),
        )
    except ValidationError as error:
        first = error.errors()[0]
        problem = describe(("model", *first["loc"]), first["type"], first)
        raise ConfigError(f"{problem} (from data set {spec.data.name})") from error


def _refuse_clash(field: str, given: Any, fact: Any, data_name: str) -> None:
    if given is not None and given != fact:
        raise ConfigError(f"{field} is set to {given}, but data set {data_name} has {fact}")


def config_text(spec: ExperimentSpec) -> str:
    """The complete config as YAML; it is itself a valid experiment file."""
    return dump(spec.model_dump(mode="json"))


def model_hash(spec: ModelSpec) -> str:
    """Tells models apart whose tensors have the same names and shapes, such as by their heads."""
    return hashlib.sha256(json.dumps(_changed(spec), sort_keys=True).encode()).hexdigest()[:16]


def config_hash(spec: ExperimentSpec, version: int = FORMAT) -> str:
    """SHA-256 over the fields that differ from the defaults, so new fields leave old hashes valid.

    The seed is left out (it names the folder), and of an image folder only the last name counts.
    """
    data = _changed(spec)
    data.pop("seed", None)
    kind, colon, folder = spec.data.name.partition(":")
    if colon:
        data["data"]["name"] = f"{kind}:{Path(folder).name}"
    text = json.dumps({"format": version, "config": data}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _changed(spec: BaseModel) -> dict[str, Any]:
    """The fields that differ from the defaults, as plain data.

    A family's or task's name is written where it is not the default one: for the family's own spec
    it is no change.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for choice, chosen in ((FAMILY, ModelSpec), (TASK, TaskSpec)):
        if isinstance(spec, chosen) and (name := getattr(spec, choice.key)) != choice.default:
            data[choice.key] = name
    for field in data:
        if isinstance(inner := getattr(spec, field), BaseModel):
            data[field] = _changed(inner)
    return data
