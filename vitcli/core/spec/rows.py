"""Tables of named rows, and the annotations by which a field of a spec looks a name up in one.

A table is a plain dictionary. A name is looked up when a spec is validated, so a row that is added
at run time is valid from then on, and the schema is generated from the rows that are there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticKnownError, core_schema

Target = str | Callable[..., Any]
"""What a row builds with: a class or function, or where to import it from, as "module:name"."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice: what it is, and what builds it."""

    about: str
    """One line for the schema and the tables in the documentation."""
    build: Target | None = None
    """None where the choice is to build nothing."""


Table = Mapping[str, Row]


def _names(table: Table) -> str:
    *others, last = [repr(name) for name in table]
    return f"{', '.join(others)} or {last}" if others else last


@dataclass(frozen=True, eq=False)
class RowOf:
    """Annotates a field that holds the name of a row."""

    table: Table

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        rows = [{"const": name, "description": row.about} for name, row in self.table.items()]
        return {"type": "string", "oneOf": rows}

    def _check(self, name: Any) -> Any:
        if not isinstance(name, str) or name not in self.table:
            raise PydanticKnownError("literal_error", {"expected": _names(self.table)})
        return name


@dataclass(frozen=True, kw_only=True)
class SpecRow(Row):
    """A choice with fields of its own."""

    spec: type[BaseModel]


@dataclass(frozen=True, eq=False)
class SpecOf:
    """Annotates a field that holds a spec, whose class is that of the row that ``key`` names."""

    table: Mapping[str, SpecRow]
    key: str
    default: str
    prepare: Callable[[type[BaseModel], Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Changes a mapping before the class checks it."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.choose)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self._described(name, handler) for name in self.table]}

    def _described(self, name: str, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        row = self.table[name]
        described = dict(handler(row.spec.__pydantic_core_schema__)) | {"description": row.about}
        return described if name == self.default else described | {"required": [self.key]}

    def choose(self, value: Any) -> BaseModel:
        """Return a spec from a mapping of its fields; a spec is returned as it is.

        Raises:
            ValidationError: No row has that name, or the fields do not fit.
        """
        if isinstance(value, tuple({row.spec for row in self.table.values()})):
            return cast(BaseModel, value)
        if not isinstance(value, Mapping):
            raise PydanticKnownError("dict_type")
        name = value.get(self.key, self.default)
        if not isinstance(name, str) or name not in self.table:
            wrong = InitErrorDetails(
                type="literal_error",
                loc=(self.key,),
                input=name,
                ctx={"expected": _names(self.table)},
            )
            raise ValidationError.from_exception_data(self.key, [wrong])
        spec = self.table[name].spec
        return spec.model_validate(self.prepare(spec, value) if self.prepare else value)

    def name_of(self, raw: Any) -> str:
        """Return the name of the row that a mapping, which need not be valid, asks for."""
        name = raw.get(self.key) if isinstance(raw, Mapping) else None
        return name if isinstance(name, str) and name in self.table else self.default


def table_of(field: FieldInfo) -> Table | None:
    """Return the table whose names a field takes; None for a field that is no choice of rows."""
    return next((each.table for each in field.metadata if isinstance(each, RowOf)), None)


def choice_of(field: FieldInfo) -> SpecOf | None:
    """Return how the class of a field's spec is chosen; None for any other field."""
    return next((each for each in field.metadata if isinstance(each, SpecOf)), None)
