"""What is known of experiment files: their headers, their kinds, whether they are sound."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.config import (
    Experiment,
    experiment_files,
    find_experiment,
    fit_to_data,
    load_experiment,
    resolve_bases,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit
from vitcli.runner.yaml_text import read_mapping

ENTRY = re.compile(r"# (\w+):\s+(.*\S)")
CONTINUED = re.compile(r"#\s{2,}(.*\S)")


@dataclass(frozen=True, kw_only=True)
class ExperimentInfo:
    """An experiment file by name; ``kind`` is experiment, study, or broken."""

    name: str
    kind: str
    question: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether an experiment file is sound; ``detail`` says what is wrong, or what was built."""

    name: str
    ok: bool
    detail: str
    parameters: int | None = None


def header(text: str) -> dict[str, str]:
    """The entries of the comment a file begins with: ``# Question: ...``; deeper lines go on."""
    entries: dict[str, str] = {}
    last = None
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if match := ENTRY.fullmatch(line.rstrip()):
            last, entries[match[1]] = match[1], match[2]
        elif last and (match := CONTINUED.fullmatch(line.rstrip())):
            entries[last] += f" {match[1]}"
    return entries


def list_experiments() -> list[ExperimentInfo]:
    """Every experiment that can be named, those of the working folder first."""
    return [describe_experiment(str(path)) for path in experiment_files().values()]


def describe_experiment(name: str) -> ExperimentInfo:
    """What a file says about itself, by name or path; one that cannot be read is broken."""
    path = find_experiment(name)
    try:
        kind = "study" if is_study(path) else "experiment"
        question = header(path.read_text()).get("Question", "")
    except ConfigError as error:
        kind, question = "broken", str(error)
    return ExperimentInfo(name=path.stem, kind=kind, question=question, path=str(path))


def is_study(path: Path) -> bool:
    """A study has variants; it may take them from its base."""
    return "variants" in resolve_bases(read_mapping(path), path)


def read_text(name: str) -> str:
    """The file as it is."""
    path = find_experiment(name)
    read_mapping(path)
    return path.read_text()


def resolved(name: str) -> Experiment:
    """An experiment with everything written out that can be known without reading images."""
    from vitcli.runner.datasets import describe_data

    experiment = load_experiment(name)
    spec = fit_to_data(experiment.spec, describe_data(experiment.spec.data))
    return Experiment(experiment.name, spec, experiment.path)


def validate(name: str) -> Verdict:
    """Check a file field by field and build its model where the sizes are known."""
    from vitcli.core.inspect.cost import count_parameters

    try:
        path = find_experiment(name)
        if is_study(path):
            return _validate_study(name)
        load_experiment(name)
        parameters = count_parameters(build_abstract(resolved(name).spec))
    except ConfigError as error:
        return Verdict(name=name, ok=False, detail=str(error))
    except InputError as error:
        detail = f"its fields; the model was not built: {error}"
        return Verdict(name=name, ok=True, detail=detail)
    detail = f"{parameters:,} parameters"
    return Verdict(name=name, ok=True, detail=detail, parameters=parameters)


def _validate_study(name: str) -> Verdict:
    from vitcli.runner.study.plan import load_study, model_sizes

    study = load_study(name)
    sizes = model_sizes(study)
    counts = ", ".join(f"{variant} {size:,}" for variant, size in sizes.items())
    detail = f"a study of {len(sizes)} variants x {len(study.seeds)} seeds; parameters: {counts}"
    return Verdict(name=name, ok=True, detail=detail, parameters=sizes[study.baseline.name])


def build_abstract(spec: ExperimentSpec) -> Any:
    """The model without memory for its weights."""
    import torch

    from vitcli.core.models.build import build_model

    try:
        with torch.device("meta"):
            return build_model(spec.model)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error


def copy_experiment(name: str, target: Path | None, *, force: bool = False) -> Path:
    """Copy a file to ``target`` (``.yaml`` is added), into that folder, or here.

    Raises:
        ConfigError: Something is there already, or the copy would not find its base.
    """
    source = find_experiment(name)
    base = read_mapping(source).data.get("base")
    target = target or Path(source.name)
    if target.is_dir():
        target /= source.name
    elif target.suffix not in (".yaml", ".yml"):
        target = target.with_name(f"{target.name}.yaml")
    if target.exists() and not force:
        raise ConfigError(f"{target} is there already; --force replaces it")
    if isinstance(base, str):
        _require_base(base, source, target)
    try:
        commit(target, source.read_bytes())
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def _require_base(base: str, source: Path, target: Path) -> None:
    try:
        find_experiment(base, beside=target.parent)
    except ConfigError as error:
        raise ConfigError(
            f"the copy would not find its base {base!r}; copy that from {source.parent} first"
        ) from error


class _FileSchema(GenerateJsonSchema):
    """The schema of what a file may say: a pair of sizes may be one integer."""

    def tuple_schema(self, schema: Any) -> dict[str, Any]:
        pair: dict[str, Any] = super().tuple_schema(schema)
        items = pair.get("prefixItems", [])
        if items and all(item.get("type") == "integer" for item in items):
            return {"anyOf": [items[0], pair]}
        return pair


def schema() -> dict[str, Any]:
    """The JSON schema of experiment and study files, for editors."""
    from vitcli.runner.study.plan import StudyFields

    fields = ExperimentSpec.model_json_schema(schema_generator=_FileSchema)
    base = {"type": "string", "description": "An experiment whose fields this file changes."}
    study = StudyFields.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **fields,
        "title": "vitcli experiment, or study where it has variants",
        "properties": {"base": base, **fields["properties"], **study["properties"]},
        "$defs": fields["$defs"] | study["$defs"],
    }
