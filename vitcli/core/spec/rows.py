"""Specs, tables of named rows, and annotations for fields that hold the name of a row.

A table is a plain dictionary. A spec looks up the name when it is validated, so a row can be added
at run time. The schema lists the rows that the table has when the schema is generated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

from vitcli.plugin import Registry, Target, load_target, missing_for


class Spec(BaseModel):
    """A frozen record that rejects unknown names, wrong types, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    is_own: ClassVar[bool] = False
    """Whether own code states the fields, so that a name of another spec has another meaning."""

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        return type(self)(**(self.model_dump() | changes))


def _to_pair(value: Any) -> Any:
    return (value, value) if type(value) is int else as_tuple(value)


def _shorten_pair(value: tuple[int, int]) -> int | list[int]:
    return value[0] if value[0] == value[1] else list(value)


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, and any other value unchanged. YAML has lists only."""
    return tuple(value) if isinstance(value, list) else value


AcceptsList = BeforeValidator(as_tuple)


class Frozen(dict[str, str]):
    """A mapping that is never changed, so that a spec with it has a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


FrozenMapping = Annotated[dict[str, str], AfterValidator(Frozen)]
MAX_SIDE = 1024
"""Largest side of an image in pixels."""
Pixels = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Size = Annotated[tuple[Pixels, Pixels], BeforeValidator(_to_pair), PlainSerializer(_shorten_pair)]
"""(height, width) in pixels. One integer means a square."""
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]
Depth = Annotated[int, Field(ge=1, le=256)]
Width = Annotated[int, Field(ge=1, le=8192)]
Channels = Annotated[tuple[float, ...], Field(min_length=1, max_length=64), AcceptsList]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One choice: a description and the target that builds it."""

    about: str
    """One-line description for the schema and the tables of the documentation."""
    build: Target | None = None
    """None if the choice builds nothing."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Keyword argument of ``build`` -> the attribute of the spec that holds its value."""
    own: type[BaseModel] | None = None
    """Spec of the options that stand beside the name in YAML. Built-in rows have none, because
    their options are fields of the model."""
    source: str = ""
    """File or package whose own code added the row; empty for a built-in row."""

    def takes(self, attribute: str) -> bool:
        """Return whether an option has the value of this attribute of the spec."""
        return attribute in self.options.values()


Table = Mapping[str, Row]
RowT = TypeVar("RowT", bound=Row)
NAME_AND_OPTIONS = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}},
    "description": "your own part, and its options",
}
"""JSON schema of an own part."""


def built_in(table: Mapping[str, RowT], name: Any) -> RowT | None:
    """Return the row that vitcli itself has of a name; None for an own part or any other value."""
    row = table.get(name) if isinstance(name, str) else None
    return row if row and not row.source else None


class Choice(str):
    """The name of an own row, and the options that stand beside it in YAML.

    It equals its name, so it can be used wherever a name is used. Two choices are equal if their
    options are, too.
    """

    options: Mapping[str, Any]

    def __new__(cls, name: str, options: Mapping[str, Any] | None = None) -> "Choice":
        made = super().__new__(cls, name)
        made.options = options or {}
        return made

    def __eq__(self, other: object) -> bool:
        same = str.__eq__(self, other) is True
        return same and (not isinstance(other, Choice) or self.options == other.options)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def options_of(name: str) -> Mapping[str, Any]:
    """Return the options that stand beside a name in YAML."""
    return name.options if isinstance(name, Choice) else {}


def as_written(name: str) -> str | dict[str, Any]:
    """Return how YAML writes a choice: a name, or a mapping of the name and its options."""
    options = options_of(name)
    return {"name": str(name), **options} if options else str(name)


def make(row: Row, *args: Any, **options: Any) -> Any:
    return load_target(row.build)(*args, **options)


def _list_names(table: Table) -> str:
    *others, last = [repr(name) for name in table]
    return f"{', '.join(others)} or {last}" if others else last


def _missing(name: Any, table: Table) -> str:
    return missing_for(table.field, name) if isinstance(table, Registry) else ""


def unknown_name(key: str, name: Any, table: Table) -> ValidationError:
    missing = _missing(name, table)
    wrong = InitErrorDetails(
        type="literal_error", loc=(key,), input=name, ctx={"expected": _list_names(table)}
    )
    if missing:
        custom = PydanticCustomError("value_error", "{missing}", {"missing": missing})
        wrong = InitErrorDetails(type=custom, loc=(key,), input=name)
    return ValidationError.from_exception_data(key, [wrong])


@dataclass(frozen=True, eq=False)
class RowOf:
    """Annotation of a field that holds the name of a row."""

    table: Table

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(as_written)
        return core_schema.no_info_plain_validator_function(self._check, serialization=written)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        rows = [{"const": name, "description": row.about} for name, row in self.table.items()]
        if not isinstance(self.table, Registry):
            return {"type": "string", "oneOf": rows}
        return {"oneOf": [*rows, NAME_AND_OPTIONS]}

    def _check(self, value: Any) -> str:
        name, options = value, dict(options_of(value))
        if isinstance(value, Mapping):
            options = dict(value)
            name = options.pop("name", None)
        if not isinstance(name, str) or name not in self.table:
            if not isinstance(value, Mapping):
                if missing := _missing(name, self.table):
                    raise ValueError(missing)
                raise PydanticKnownError("literal_error", {"expected": _list_names(self.table)})
            raise unknown_name("name", name, self.table)
        own = self.table[name].own
        if own is None:
            if options:
                raise ValueError(f"{name!r} takes no options here; write its name alone")
            return str(name)
        return Choice(name, own.model_validate(options).model_dump(exclude_defaults=True))


@dataclass(frozen=True, kw_only=True)
class SpecRow(Row):
    """A choice that has its own spec class with its own fields."""

    spec: type[BaseModel] | str
    """The class, or the text "module:name". The module is imported when a spec is validated."""

    @property
    def spec_class(self) -> type[BaseModel]:
        found: type[BaseModel] = load_target(self.spec)
        return found


@dataclass(frozen=True, eq=False)
class SpecOf:
    """Annotation of a field that holds a spec, whose class is chosen by the value of ``key``."""

    table: Mapping[str, SpecRow]
    key: str
    default: str
    prepare: Callable[[type[BaseModel], Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Function that changes a mapping before the spec class validates it."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.choose)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self._describe_row(name, handler) for name in self.table]}

    def _describe_row(self, name: str, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        row = self.table[name]
        described = dict(handler(row.spec_class.__pydantic_core_schema__))
        described["description"] = row.about
        described["properties"][self.key]["description"] = f"{name}: {row.about}."
        return described if name == self.default else described | {"required": [self.key]}

    def choose(self, value: Any) -> BaseModel:
        """Return the spec with these fields; return a spec unchanged."""
        if not isinstance(value, Mapping):
            name = getattr(value, self.key, None)
            row = self.table[name] if isinstance(name, str) and name in self.table else None
            if row and isinstance(value, row.spec_class):
                return value
            raise PydanticKnownError("dict_type")
        name = value.get(self.key, self.default)
        if not isinstance(name, str) or name not in self.table:
            raise unknown_name(self.key, name, self.table)
        spec = self.table[name].spec_class
        return spec.model_validate(self.prepare(spec, value) if self.prepare else value)

    def name_of(self, raw: Any) -> str:
        """Return the name of the row for a mapping that may be invalid; the default if unknown."""
        name = raw.get(self.key) if isinstance(raw, Mapping) else None
        return name if isinstance(name, str) and name in self.table else self.default


def table_of(field: FieldInfo) -> Table | None:
    """Return the table of a field that holds the name of a row, or None for any other field."""
    return next((each.table for each in field.metadata if isinstance(each, RowOf)), None)


def choice_of(field: FieldInfo) -> SpecOf | None:
    """Return the annotation of a field that holds a chosen spec, or None for any other field."""
    return next((each for each in field.metadata if isinstance(each, SpecOf)), None)
