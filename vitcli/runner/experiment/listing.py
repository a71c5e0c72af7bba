"""Lists, descriptions, copies and the schema of experiment and study files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from vitcli.core.spec import ExperimentSpec
from vitcli.plugin import load_target
from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment import yaml_text
from vitcli.runner.experiment.config import find_experiment, merge_with_bases
from vitcli.runner.experiment.kinds import FILE_KINDS, kind_of
from vitcli.runner.files import commit


@dataclass(frozen=True, kw_only=True)
class ExperimentInfo:
    """Name, kind (experiment, broken or one of ``FILE_KINDS``), purpose and path of a file."""

    name: str
    kind: str
    question: str
    hypothesis: str = ""
    path: str


def describe_experiment(name: str) -> ExperimentInfo:
    """Describe an experiment file by name or path; a file that cannot be read is broken."""
    path = find_experiment(name)
    try:
        kind = name_of_kind(path)
        purpose = yaml_text.read_purpose(yaml_text.read_mapping(path)).model_dump()
    except ConfigError as error:
        kind, purpose = "broken", {"question": str(error)}
    return ExperimentInfo(name=path.stem, kind=kind, path=str(path), **purpose)


def name_of_kind(path: Path) -> str:
    fields, _ = merge_with_bases(path)
    kind = kind_of(fields, path)
    return kind.name if kind else "experiment"


def read_text(name: str) -> str:
    path = find_experiment(name)
    yaml_text.read_mapping(path)
    return path.read_text()


def copy_experiment(name: str, target: Path | None, *, force: bool = False) -> Path:
    """Copy a file, without its results, to a file or into a folder; return the path."""
    source = find_experiment(name)
    document = yaml_text.read_mapping(source)
    base = document.data.get("base")
    target = target or Path(source.name)
    if target.is_dir():
        target /= source.name
    elif target.suffix not in (".yaml", ".yml"):
        target = target.with_name(f"{target.name}.yaml")
    if target.exists() and not force:
        raise ConfigError(f"{target} exists already; --force replaces it")
    if isinstance(base, str):
        try:
            find_experiment(base, beside=target.parent)
        except ConfigError as error:
            raise ConfigError(
                f"the copy would not find its base {base!r}; first copy the base from"
                f" {source.parent}"
            ) from error
    try:
        commit(target, text_of_copy(source, document).encode())
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written: {error.strerror}") from error
    return target


def text_of_copy(source: Path, document: yaml_text.Document) -> str:
    text = source.read_text()
    # The numbers under ``reference`` belong to the model that the source describes.
    if start := document.lines.get(("reference",)):
        later = [line for path, line in document.lines.items() if len(path) == 1 and line > start]
        lines = text.splitlines(keepends=True)
        text = "".join(lines[: start - 1] + lines[min(later, default=len(lines) + 1) - 1 :])
    text = yaml_text.without_results(text)
    wanted = {name: value for name, value in document.data.items() if name != "reference"}
    # A file in one line of braces cannot lose a part of its lines.
    return text if yaml_text.Document(text, "copy").data == wanted else yaml_text.dump(wanted)


class _FileSchema(GenerateJsonSchema):
    """The schema of what a file may say: a pair of sizes may be one integer."""

    def tuple_schema(self, schema: Any) -> dict[str, Any]:
        pair: dict[str, Any] = super().tuple_schema(schema)
        items = pair.get("prefixItems", [])
        if items and all(item.get("type") == "integer" for item in items):
            return {"anyOf": [items[0], pair]}
        return pair


def file_schema() -> dict[str, Any]:
    """Return the JSON schema of experiment files of every kind, for editors."""
    fields = ExperimentSpec.model_json_schema(schema_generator=_FileSchema)
    base = {"type": "string", "description": "Experiment whose fields this file changes."}
    purpose = yaml_text.Purpose.model_json_schema()["properties"]
    others = [load_target(kind.fields).model_json_schema() for kind in FILE_KINDS.values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **fields,
        "title": "vitcli experiment, study where it has variants, or search where it has a space",
        "properties": {"base": base, **purpose, **fields["properties"]}
        | {name: field for other in others for name, field in other["properties"].items()},
        "$defs": fields["$defs"]
        | {name: kind for other in others for name, kind in other["$defs"].items()},
    }
