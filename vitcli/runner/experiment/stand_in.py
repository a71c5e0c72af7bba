"""Rows that stand for own parts whose code is not loaded, so that configurations can be read."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS, ModelSpec, Spec, TaskSpec
from vitcli.core.spec.data import POLICIES
from vitcli.core.spec.own import PYTHON
from vitcli.core.spec.readers import DATA_READERS
from vitcli.core.spec.slots import SLOTS
from vitcli.core.spec.task import DEFAULT_TASK
from vitcli.runner.errors import OwnCodeError
from vitcli.runner.experiment.own_code import missing_code, needed


class _AnyOptions(Spec):
    model_config = ConfigDict(extra="allow")


class _AnyModel(ModelSpec):
    model_config = ConfigDict(extra="allow")


def stand_in(raw: Mapping[str, Any], code: Mapping[str, str], copies: Path | None) -> None:
    """Add rows for the own parts of a stored configuration whose code is not loaded.

    With them, the configuration can be read and listed. To build one of the parts is refused.
    """
    missing = missing_code(code)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OwnCodeError(needed(missing, copies))

    def add(table: Any, like: str, name: Any, **facts: Any) -> None:
        name = name.get("name") if isinstance(name, Mapping) else name
        if isinstance(name, str) and name not in table:
            facts = {"own": _AnyOptions, **facts}
            table[name] = replace(
                table[like], about="own code", build=refuse, source=f"{PYTHON}{name}", **facts
            )

    parts = {key: value for key, value in raw.items() if isinstance(value, Mapping)}
    model, optim = parts.get("model", {}), parts.get("optim", {})
    for slot, table in SLOTS.items():
        add(table, next(iter(table)), model.get(slot))
    add(FAMILIES, "resnet18", model.get("family"), spec=_AnyModel)
    add(OPTIMIZERS, "adamw", optim.get("name"))
    add(SCHEDULES, "cosine", optim.get("schedule"))
    add(POLICIES, "none", (parts.get("data", {}).get("augment") or {}).get("policy"))
    prefix = str(parts.get("data", {}).get("name", "")).partition(":")
    if prefix[1]:
        add(DATA_READERS, "hf", prefix[0], own=None, packages=())
    add(TASKS, DEFAULT_TASK, parts.get("task", {}).get("name"), spec=_AnyTask)


class _AnyTask(TaskSpec):
    model_config = ConfigDict(extra="allow")
