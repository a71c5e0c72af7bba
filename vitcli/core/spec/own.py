"""How a user's own parts become rows of the tables."""

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import GetCoreSchemaHandler, PydanticUserError, ValidationError, create_model
from pydantic_core import PydanticSerializationError, core_schema, to_json

from vitcli.core.metric import METRICS, Metric
from vitcli.core.spec.data import DATA_READERS, POLICIES
from vitcli.core.spec.families import FAMILIES
from vitcli.core.spec.optim import OPTIMIZERS, SCHEDULES
from vitcli.core.spec.rows import Row, Spec
from vitcli.core.spec.slots import ATTENTIONS, FFNS, NORMS, PATCH_EMBEDS, POOLS, POS_EMBEDS
from vitcli.core.spec.task import TASKS
from vitcli.plugin import Registry, package_of

FIELDS: dict[str, Registry[Any]] = {
    "model.attention": ATTENTIONS,
    "model.ffn": FFNS,
    "model.norm": NORMS,
    "model.pos_embed": POS_EMBEDS,
    "model.patch_embed": PATCH_EMBEDS,
    "model.pool": POOLS,
    "model.family": FAMILIES,
    "task.name": TASKS,
    "optim.name": OPTIMIZERS,
    "optim.schedule": SCHEDULES,
    "data.augment.policy": POLICIES,
}
"""Field of an experiment that may name an own part -> the table of its rows."""
NAME_AND_METHODS = {"name", *dir(Spec)}
"""Names that no option beside the name of a part can have."""
NEEDS_CODE = "; own parts need --code FILE.py"
PYTHON = "python:"
"""Begins the source of a part of a notebook or script, which exists in this process only."""
PARTS: dict[Any, str] = {}
"""Class or function -> the name of the part."""
TEXTS: dict[str, str] = {}
"""Module that Python has imported by itself -> its text when it defined a part."""
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PLAIN = "an option is made of numbers, text, true, false, None, lists, tuples and dictionaries"
# These fields have no docstrings; pydantic would search the source of every caller for them.
new_spec: Any = partial(create_model, __cls_kwargs__={"use_attribute_docstrings": False})
_source = ""


def source_of(build: Callable[..., Any], name: str) -> str:
    """Return the source of a part that is defined now, and note its name and text.

    That is the file or package that is being loaded, or the file or package folder that Python is
    importing. A part of a notebook or script has none.
    """
    PARTS[build] = name
    if _source:
        return _source
    module = inspect.getmodule(build)
    file = getattr(module, "__file__", None) or ""
    is_here = module is None or module.__name__ == "__main__" or not file.endswith(".py")
    if module is None or is_here or "<locals>" in build.__qualname__:
        return f"{PYTHON}{name}"
    with contextlib.suppress(OSError, TypeError):
        TEXTS[module.__name__] = inspect.getsource(module)
    root = module.__name__.partition(".")[0]
    if package := package_of(module.__name__):
        return package
    return f"{root}/" if module.__package__ else f"{root}.py"


@contextmanager
def registering(source: str) -> Iterator[None]:
    """Give the parts that the block defines this source."""
    global _source
    _source, before = source, _source
    try:
        yield
    finally:
        _source = before


def forget(source: str) -> None:
    """Remove the parts of a source, which will define them again."""
    for table in (*FIELDS.values(), DATA_READERS, METRICS):
        for name in [name for name, row in table.items() if row.source == source]:
            del table[name]


def options_of_signature(
    build: Callable[..., Any],
    skip: int,
    reserved: Mapping[str, str] | tuple[str, ...] = (),
    taken: Collection[str] = NAME_AND_METHODS,
) -> dict[str, Any]:
    """Return the fields of a spec: name -> (type, default), for the parameters after ``skip``.

    ``taken`` are names that no option can have.
    """
    target = build.__init__ if isinstance(build, type) else build  # type: ignore[misc]
    hints = get_type_hints(target, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in [*inspect.signature(build).parameters.items()][skip:]:
        if name in reserved or parameter.kind in VARIABLE:
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        if name not in hints and default is ...:
            raise TypeError(f"parameter {name!r} of {build.__name__} needs a type or a default")
        fields[name] = (hints.get(name, Any if default is None else type(default)), default)
    return checked_options(build.__name__, fields, taken)


class AsWritten:
    """Annotation of an option: its values are read as YAML and JSON write them.

    So a list is a tuple, text is a path, and the value of an ``Enum`` is its member. A value has
    the same type in a new training and in the run that was read.
    """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        read = core_schema.json_schema(handler(source))
        return core_schema.no_info_before_validator_function(_written, read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        described: dict[str, Any] = handler(schema["schema"]["schema"])
        return described


def _written(value: Any) -> bytes:
    try:
        return to_json(value)
    except PydanticSerializationError as error:
        raise ValueError(PLAIN) from error


def checked_options(name: str, fields: Mapping[str, Any], taken: Collection[str]) -> dict[str, Any]:
    """Return the fields of options, whose values are read as written."""
    options: dict[str, Any] = {}
    for field, (kind, default) in fields.items():
        where = f"{name}: option {field!r}"
        if field in taken or field.startswith("_"):
            raise TypeError(f"{where}: vitcli itself uses this name; rename the option")
        if _has_set(kind):
            raise TypeError(f"{where} is a set, which has no order; make it a tuple")
        kind = Annotated[kind, AsWritten()]
        try:
            spec = new_spec(name, __base__=Spec, value=(kind, ...))
            value = default if default is ... else spec(value=default).value
            again = default if default is ... else spec(value=default).model_dump()["value"]
        except (PydanticUserError, ValidationError) as error:
            problem = "its type has no form in YAML"
            if isinstance(error, ValidationError):
                problem = error.errors()[0]["msg"]
            raise TypeError(f"{where}: default {default!r}: {problem}; {PLAIN}") from error
        if not value == again == default or type(value) is not type(again):
            raise TypeError(
                f"{where}: a run's config.yaml would make {again!r} of {default!r}; {PLAIN}, and"
                " each tuple needs its type, such as tuple[int, ...]"
            )
        options[field] = (kind, value)
    return options


def _has_set(kind: Any) -> bool:
    origin = get_origin(kind) or kind
    is_set = isinstance(origin, type) and issubclass(origin, AbstractSet)
    return is_set or any(map(_has_set, get_args(kind)))


class OwnPartError(TypeError):
    """A wrong result of an own part."""

    def __init__(self, part: Any, text: str) -> None:
        super().__init__(text)
        self.part = part


def add_row(table: Any, row: Row | Metric, name: str) -> None:
    """Add a row to a table; a file or notebook that is run again replaces its rows."""
    if not name.isidentifier() or name.lower() in ("null", "true", "false"):
        raise ValueError(f"a part's name is letters, digits and _, and no word of YAML: {name!r}")
    source = table[name].source if table.is_read(name) else PYTHON
    if not source.startswith(PYTHON) and (source != row.source or _source):
        owner = source or "vitcli"
        raise ValueError(f"{owner} has a part {name!r} already; give yours another name")
    table[name] = row


def parameters_of(build: Callable[..., Any]) -> Any:
    return inspect.signature(build).parameters


def first_line(build: Any) -> str:
    """Return the first line of a docstring, for the lists of parts."""
    return (inspect.getdoc(build) or "your own part").partition("\n")[0].rstrip(".")
