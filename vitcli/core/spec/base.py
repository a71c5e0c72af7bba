"""The base class of all specs, and field types that several specs share."""

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer


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
    if type(value) is int:
        return (value, value)
    return as_tuple(value)


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
