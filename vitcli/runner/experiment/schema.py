"""The JSON schema of experiment and study files, for editors."""

from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.runner.experiment.purpose import Purpose


class _FileSchema(GenerateJsonSchema):
    """The schema of what a file may say: a pair of sizes may be one integer."""

    def tuple_schema(self, schema: Any) -> dict[str, Any]:
        pair: dict[str, Any] = super().tuple_schema(schema)
        items = pair.get("prefixItems", [])
        if items and all(item.get("type") == "integer" for item in items):
            return {"anyOf": [items[0], pair]}
        return pair


def schema(*file_fields: type[Spec]) -> dict[str, Any]:
    """Return the JSON schema of a file that holds an experiment and fields of other kinds too."""
    fields = ExperimentSpec.model_json_schema(schema_generator=_FileSchema)
    base = {"type": "string", "description": "Experiment whose fields this file changes."}
    purpose = Purpose.model_json_schema()["properties"]
    others = [each.model_json_schema() for each in file_fields]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **fields,
        "title": "vitcli experiment, study where it has variants, or search where it has a space",
        "properties": {"base": base, **purpose, **fields["properties"]}
        | {name: field for other in others for name, field in other["properties"].items()},
        "$defs": fields["$defs"]
        | {name: kind for other in others for name, kind in other["$defs"].items()},
    }
