"""Rows that stand for own parts whose code is not loaded, so that configurations can be read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict

from vitcli.core.spec import DATA_READERS, ModelSpec, Spec, TaskSpec
from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.own import FIELDS, PYTHON
from vitcli.core.spec.rows import Rows
from vitcli.runner.errors import OwnCodeError
from vitcli.runner.experiment.own_code import needed, same_part, unknown_code


class _AnyOptions(Spec):
    model_config = ConfigDict(extra="allow")


class _AnyModel(ModelSpec):
    model_config = ConfigDict(extra="allow")
    is_own: ClassVar[bool] = True


class _AnyTask(TaskSpec):
    model_config = ConfigDict(extra="allow")
    is_own: ClassVar[bool] = True


UNKNOWN = Metric(name="score", label="score")
"""Headline of an own objective, unless its run states it."""
FACTS: dict[str, dict[str, Any]] = {
    "model.family": {"spec": _AnyModel},
    "task.name": {"spec": _AnyTask, "headline": UNKNOWN, "classifies": False},
}
"""Field -> what its row has beside the facts of another row."""
LIKE = {"model.family": "resnet18"}
"""Field -> the row whose facts its row has; the first one of its table if absent."""


@contextmanager
def stand_in(raw: Mapping[str, Any], copies: Path) -> Iterator[bool]:
    """Add rows for the own parts of a stored configuration whose code is not loaded.

    With them, the configuration can be read and listed. To build one of the parts is refused. In
    the block, they also stand for loaded parts of the same names that are not those of the run.
    Yields whether there are such rows or files.
    """
    code = raw.get("code")
    code = code if isinstance(code, Mapping) else {}
    unknown = unknown_code(code)
    hidden = []

    def refuse(*_: Any, **__: Any) -> Any:
        raise OwnCodeError(needed(unknown, copies))

    def add(table: Rows[Any], value: Any, like: str, **facts: Any) -> None:
        if (name := name_in(value)) is None:
            return
        if row := table.get(name):
            if row.source in {"", *code} - {*unknown} or same_part(name, code):
                return
            hidden.append((table, name, table.pop(name)))
        facts = {"own": _AnyOptions, **facts}
        table.unlisted[name] = replace(
            table[like], about="own code", build=refuse, source=f"{PYTHON}{name}", **facts
        )

    first = value_at(raw, "pretrain")
    augment = {"data": {"augment": value_at(first, "augment")}}
    for fields in (raw, first, augment) if code else ():
        for field, table in FIELDS.items():
            like = LIKE.get(field, next(iter(table)))
            add(table, value_at(fields, field), like, **FACTS.get(field, {}))
    prefix = str(value_at(raw, "data.name")).partition(":")
    if prefix[1] and code:
        add(DATA_READERS, prefix[0], "hf", own=None, packages=())
    try:
        yield bool(unknown or hidden)
    finally:
        for table, name, row in hidden:
            table[name] = row


def without_unknown_teacher(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields without a teacher's model that has a part whose code is not loaded.

    Only a training needs this model, and takes it from the run of the teacher.
    """
    teacher = value_at(raw, "task.teacher")
    named = {field: name_in(value_at(teacher, field)) for field in FIELDS}
    if all(name in {None, *FIELDS[field]} for field, name in named.items()):
        return raw
    known = {key: value for key, value in teacher.items() if key != "model"}
    return {**raw, "task": {**raw["task"], "teacher": known}}


def name_in(value: Any) -> str | None:
    """Return the name of a part, beside which options may stand; None if there is none."""
    name = value.get("name") if isinstance(value, Mapping) else value
    return name if isinstance(name, str) else None


def value_at(raw: Any, field: str) -> Any:
    """Return the value of a dotted field; None if it is not set."""
    for key in field.split("."):
        raw = raw.get(key) if isinstance(raw, Mapping) else None
    return raw
