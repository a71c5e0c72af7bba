"""Read experiments from YAML files and ``--set``, and check them. No other module reads them."""

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from vitcli.core.spec import DATA_SETS, FAMILIES, ExperimentSpec, ModelSpec, TaskSpec
from vitcli.core.spec.families import FAMILY
from vitcli.core.spec.own import FIELDS
from vitcli.core.spec.task import TASK
from vitcli.plugin import load_target
from vitcli.runner.errors import ConfigError, OwnCodeError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.family import FIELD as MODEL_FAMILY
from vitcli.runner.experiment.family import choice_below, is_choice, is_option, switch_family
from vitcli.runner.experiment.kinds import kind_of
from vitcli.runner.experiment.problems import describe, with_place
from vitcli.runner.experiment.yaml_text import (
    FILE_FIELDS,
    Document,
    Place,
    Places,
    dump,
    format_value,
    in_files,
    is_typed,
    on_command_line,
    read_mapping,
    read_purpose,
    value_at,
)
from vitcli.runner.text import did_you_mean, is_utf8, portable, printable, quoted
from vitcli.version import PACKAGE

FORMAT = 2
"""Raised when the meaning of a field or the results of a training change, so that old results are
not mistaken for new ones. 1: up to 0.7.0. 2: initial weights and a step's randomness by key."""
SIZES = ("img_size", "in_chans", "num_classes")
"""Fields of the model that come from the data set unless they are set."""
ROWS = ("variants", "tune", "reference")
"""Fields that a study with its own variants does not take from its base."""
STATISTICS = ("mean", "std")
"""Fields of the data that come from the data set unless they are set."""


@dataclass(frozen=True)
class Experiment:
    """A named spec. ``changed`` tells whether the command line differs from the file."""

    name: str
    spec: ExperimentSpec
    path: Path
    changed: bool = False
    variant: str | None = None
    """The variant of a study that this experiment is."""
    note: str = ""
    """What the user should know about the changes; empty if nothing."""
    typed: frozenset[str] = frozenset()
    """Fields that the command line sets."""


def folders() -> list[Path]:
    """Return the folders with experiments: here, then in the package, then in its checkout."""
    places = [Path("experiments"), PACKAGE / "experiments", PACKAGE.parent / "experiments"]
    return [place for place in places if place.is_dir()]


def experiment_files() -> dict[str, Path]:
    """Return name -> file for every named experiment; the first folder takes precedence."""
    files: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.yaml")):
            if path.is_file():
                files.setdefault(path.stem, path)
    return files


def find_experiment(name: str, beside: Path | None = None) -> Path:
    if name.endswith((".yaml", ".yml")) or "/" in name:
        path = (beside / name) if beside else Path(name)
        if path.is_dir():
            raise ConfigError(
                f"{path}: a folder, not an experiment file; to train on its pictures, type"
                f" --data {quoted(f'imagefolder:{name}')}"
            )
        if not path.is_file():
            raise ConfigError(f"{path}: no such experiment file")
        return path
    files = experiment_files()
    if beside and (beside / f"{name}.yaml").is_file():
        return beside / f"{name}.yaml"
    if name not in files:
        hint = f"{did_you_mean(name, files)} ('vitcli experiments ls' lists them)"
        if name in DATA_SETS:
            hint = f"; it is a data set: type --data {name}"
        elif name.endswith(".py") and os.path.isfile(name):
            hint = f"; to train with its parts, type --code {quoted(name)}"
        raise ConfigError(f"no experiment is called {name!r}{hint}")
    return files[name]


def typed_name(path: Path) -> str:
    """Return the argument that selects an experiment's file: its name, or else its path.

    Of a path outside the current folder, only the file's name is left, as in all results.
    """
    is_named = experiment_files().get(path.stem) == path
    return path.stem if is_named else str(portable(str(path)))


def typed_command(verb: str, *words: str) -> list[str]:
    """Return a command about an experiment or data set, with the own code of this call."""
    return ["vitcli", *verb.split(), *words, *own_code.options()]


def typed_changes(
    changes: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> list[str]:
    """Return the unquoted options of changed fields: ``options`` names some, others are ``-s``."""
    words = []
    for field, value in changes.items():
        option, text = (options or {}).get(field), format_value(value)
        words += [option, text] if option else ["-s", f"{field}={text}"]
    return words


def shown_name(name: str, path: Path) -> str:
    """Return a name for messages: with the file, unless the experiment comes with vitcli."""
    shipped = [folder.resolve() for folder in folders()[-2:] if folder.is_absolute()]
    return name if path.resolve().parent in shipped else f"{name} ({path})"


def load_experiment(
    name: str, changes: Mapping[str, Any] | None = None, options: Mapping[str, str] | None = None
) -> Experiment:
    """Read an experiment, with changes of dotted fields by ``options``, or else by ``--set``."""
    path = find_experiment(name)
    raw, documents = merge_with_bases(path)
    raw |= load_own_code(documents) if "code" in raw else {}
    refuse_unknown_data(changes or {}, options or {})
    if kind := kind_of(raw, path):
        file = shlex.quote(path.stem if typed_name(path) == path.stem else str(path))
        raise ConfigError(f"{path}: this is a {kind.name}; run it: vitcli {kind.command} {file}")
    read_purpose(documents[0])
    spec = parse_experiment(raw, in_files(documents), is_stored=bool(changes))
    if not changes:
        return Experiment(path.stem, spec, path)
    raw, note = switch_family(raw, changes) if MODEL_FAMILY in changes else (raw, "")
    changed = parse_experiment(override(raw, changes), on_command_line(changes, options or {}))
    is_changed = changed.replace(seed=spec.seed) != spec
    return Experiment(path.stem, changed, path, is_changed, note=note, typed=frozenset(changes))


def base_spec(name: str) -> ExperimentSpec | None:
    """Return the spec of a named experiment, or the base of a named study.

    The file is searched as ``find_experiment`` does, then in the working folder. None if there is
    no such file, or if it is wrong.
    """
    for file in (name, f"{name}.yaml"):
        try:
            path = find_experiment(file)
            fields, documents = merge_with_bases(path)
            kept = {key: fields[key] for key in fields if key in ExperimentSpec.model_fields}
            return parse_experiment(kept, documents[0], is_stored=True)
        except (ConfigError, OSError, ValueError):  # a name may come from a damaged file
            continue
    return None


def merge_with_bases(
    path: Path, document: Document | None = None
) -> tuple[dict[str, Any], list[Document]]:
    """Return the fields of a file laid over those of its bases, and the file and its bases.

    A base is the experiment in ``base:``. The file is ``path``; ``document`` may stand for it.
    """
    documents, seen = [document or read_mapping(path)], {path.resolve()}
    while (base := documents[-1].data.get("base")) is not None:
        where = documents[-1].where(("base",))
        if not isinstance(base, str):
            raise ConfigError(f"{where}: 'base' must name one experiment")
        try:
            path = find_experiment(base, beside=path.parent)
        except ConfigError as error:
            raise ConfigError(f"{where}: base: {error}") from error
        if path.resolve() in seen:
            raise ConfigError(f"{where}: base: {path} again; bases must not form a circle")
        seen.add(path.resolve())
        documents.append(read_mapping(path))
    merged: dict[str, Any] = {}
    for file in reversed(documents):
        if "variants" in file.data:  # a study's own variants replace those of its base
            merged = {key: value for key, value in merged.items() if key not in ROWS}
        fields = {key: value for key, value in file.data.items() if key not in FILE_FIELDS}
        merged = merge(merged, fields) if merged else fields
    return merged, documents


def load_own_code(documents: Sequence[Document], typed: str | None = None) -> dict[str, Any]:
    """Load the own code that files name; return the field ``code`` with the hash of each file.

    Only the first file, or the file ``typed``, may name code, and only if the user typed it.
    """
    code: dict[str, str] = {}
    is_typed = (typed or documents[0].origin) in own_code.state.typed
    for document in reversed(documents):
        code |= own_code.name_code(
            document.data.get("code"), Path(document.origin), is_typed=is_typed
        )
    return {"code": code} if code else {}


def refuse_unknown_data(changes: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Refuse a data set that the command line names and that no loaded code adds."""
    from vitcli.runner.data.find import check_name

    if isinstance(data := changes.get("data.name"), str):
        check_name(data, f"{options.get('data.name', '--set: data.name')}: ")


def merge(below: Mapping[str, Any], above: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return a mapping laid over another: mappings are merged, each choice over ``choice_below``.

    A dictionary that is an option replaces the one below it. ``place`` begins the dotted fields.
    """
    out = dict(below)
    for key, value in above.items():
        field = f"{place}{key}"
        if isinstance(value, Mapping) and key in out and not is_option(field):
            inner = out[key]
            if is_choice(field):
                inner = choice_below(field, inner, value.get(_name_of(field)))
            value = merge(inner if isinstance(inner, Mapping) else {}, value, f"{field}.")
        out[key] = value
    return out


def _name_of(choice: str) -> str:
    return "family" if choice == "model" else "name"


def override(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``data`` with dotted fields replaced; another choice as in merge."""
    out = dict(data)
    for path, name in changes.items():
        choice, _, key = path.rpartition(".")
        if key == _name_of(choice) and is_choice(choice):
            out = override(out, {choice: choice_below(choice, value_at(out, choice), name)})
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        inner = out.get(head)
        if rest and isinstance(inner, str):  # the name of a part, beside which options may stand
            inner = {"name": inner}
        if rest:
            value = override(inner if isinstance(inner, Mapping) else {}, {rest: value})
        out[head] = value
    return out


def flatten(
    data: Mapping[str, Any], prefix: str = "", *, whole_options: bool = False
) -> dict[str, Any]:
    """Return nested mappings as dotted fields: ``{a: {b: 1}}`` becomes ``{a.b: 1}``.

    With ``whole_options``, a dictionary that is an option stays one value.
    """
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and not (whole_options and is_option(f"{prefix}{key}")):
            out |= flatten(value, f"{prefix}{key}.", whole_options=whole_options)
        else:
            out[f"{prefix}{key}"] = value
    return out


def parse_set(text: str) -> dict[str, Any]:
    """Return the change in a text such as ``"model.depth=4"``: ``{"model.depth": 4}``."""
    path, equals, value = text.partition("=")
    if not (path.strip() and equals):
        raise ConfigError(f"--set takes FIELD=VALUE, such as model.depth=4, got {text!r}")
    data = Document(f"value: {value}", f"--set {text!r}").data
    if set(data) != {"value"}:
        raise ConfigError(f"--set takes one FIELD=VALUE, got {text!r}")
    return {path.strip(): data["value"]}


def parse_sets(texts: Sequence[str] | None) -> dict[str, Any]:
    return {field: value for text in texts or () for field, value in parse_set(text).items()}


def parse_experiment(
    raw: Mapping[str, Any], place: Place, *, is_stored: bool = False, copies: Path | None = None
) -> ExperimentSpec:
    """Return a checked spec; the first mistake becomes one line with its field and place.

    Own code in ``code`` must be loaded; the spec keeps what it uses. That of a run, whose copies
    are in ``copies``, keeps all of it, and only the code of its parts must be loaded.
    """
    if raw.get("pretrain"):
        raw = merge_with_pretraining(raw, place)
    if value_at(raw, "task.teacher"):
        raw = _without_own_teacher(raw)
    given = raw.get("code")
    code: Mapping[str, str] = given if isinstance(given, Mapping) else {}
    missing = own_code.missing_code(code, copies) if code else []
    if missing and not copies:
        raise OwnCodeError(own_code.needed(missing, copies))
    require_text(raw, place)
    try:
        spec = ExperimentSpec.model_validate({**raw, "code": {}} if code and not copies else raw)
    except ValidationError as error:
        first = error.errors()[0]
        if missing:
            raise OwnCodeError(own_code.needed(missing, copies)) from error
        if first["type"] == "literal_error" and own_code.load_packages():
            return parse_experiment(raw, place, is_stored=is_stored, copies=copies)
        in_file = not is_typed(place.where(first["loc"]))
        of_function = isinstance(place, Places) and not place.sources
        problem = describe(
            first["loc"], first["type"], first, raw, in_file=in_file, of_function=of_function
        )
        raise ConfigError(with_place(place, first["loc"], problem)) from error
    if copies and (other := own_code.sources_of(spec) - code.keys()):
        raise OwnCodeError(own_code.needed(missing or [*other], copies))
    if not copies and (used := own_code.code_of(spec)):
        spec = spec.replace(code=used)
    return spec if is_stored else _refuse_training(spec, place)


def _refuse_training(spec: ExperimentSpec, place: Place) -> ExperimentSpec:
    """Return a spec that can be trained; its family may state sizes of the pictures."""
    if spec.refusal:
        raise ConfigError(with_place(place, (), spec.refusal))
    fit = FAMILIES[spec.model.family].fit
    try:
        return load_target(fit)(spec) if fit else spec
    except ConfigError as error:
        raise ConfigError(with_place(place, (), str(error))) from error


def _without_own_teacher(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields without a teacher's model that has own parts.

    Only a training needs this model, and takes it from the run of the teacher.
    """
    teacher = value_at(raw, "task.teacher")
    names = {field: value_at(teacher, field) for field in FIELDS if value_at(teacher, field)}
    names = {field: value_at(name, "name") or name for field, name in names.items()}
    if value_at(teacher, "code") or any(names[field] not in FIELDS[field] for field in names):
        known = {key: value for key, value in teacher.items() if key != "model"}
        return {**raw, "task": {**raw["task"], "teacher": known}}
    return raw


def require_text(raw: Mapping[str, Any], place: Place) -> None:
    for field, value in flatten(raw).items():
        if isinstance(value, str) and not is_utf8(value):
            problem = f"{quoted(printable(value))} is not UTF-8; rename that file or folder"
            raise ConfigError(with_place(place, tuple(field.split(".")), problem))


def merge_with_pretraining(raw: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
    """Return fields whose ``pretrain.experiment`` is replaced by the fields of that experiment."""
    part = raw.get("pretrain")
    if not isinstance(part, Mapping) or "experiment" not in part:
        return raw
    name = part["experiment"]
    try:
        if not isinstance(name, str):
            raise ConfigError(f"must name an experiment, got {name!r}")
        below, _ = merge_with_bases(find_experiment(name))
        if "variants" in below:
            raise ConfigError(f"{name!r} is a study, not an experiment")
    except ConfigError as error:
        raise ConfigError(with_place(place, ("pretrain", "experiment"), str(error))) from error
    fields: dict[str, Any] = {key: below[key] for key in ("task", "optim", "train") if key in below}
    if augment := (below.get("data") or {}).get("augment"):
        fields["augment"] = augment
    changes = {key: value for key, value in part.items() if key != "experiment"}
    return {**raw, "pretrain": merge(fields, changes, "pretrain.")}


def config_text(spec: ExperimentSpec) -> str:
    """Return the complete configuration as YAML, which is itself a valid experiment file."""
    return dump(spec.model_dump(mode="json"))


def model_hash(spec: ModelSpec) -> str:
    """Return a hash of the model, which also differs if only settings such as num_heads do."""
    text = json.dumps(_changed_fields(spec), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_hash(spec: ExperimentSpec, version: int = FORMAT) -> str:
    """Return a SHA-256 of the fields that differ from the defaults.

    New fields with a default therefore leave old hashes valid. The seed is ignored, because the
    name of the folder contains it. Only the last part of the path of an image folder, and of its
    corrections, is used. Of a teacher, its name is used, as of ``train.init``.
    """
    data = _changed_fields(spec)
    if teacher := spec.task.taught_by:
        data["task"]["teacher"] = {"run": teacher.run}
    data.pop("seed", None)
    kind, colon, folder = spec.data.name.partition(":")
    if colon:
        data["data"]["name"] = f"{kind}:{Path(folder).name}"
    if spec.data.corrections:
        data["data"]["corrections"] = Path(spec.data.corrections).name
    text = json.dumps({"format": version, "config": data}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _changed_fields(spec: BaseModel) -> dict[str, Any]:
    """Return the fields that differ from the defaults, as plain data.

    A family or task that is not the default is written by its name; its own spec treats that name
    as its default.
    """
    data = spec.model_dump(mode="json", exclude_defaults=True)
    for choice, chosen in ((FAMILY, ModelSpec), (TASK, TaskSpec)):
        if isinstance(spec, chosen) and (name := getattr(spec, choice.key)) != choice.default:
            data[choice.key] = name
    for field in data:
        if isinstance(inner := getattr(spec, field), BaseModel):
            data[field] = _changed_fields(inner)
    return data
