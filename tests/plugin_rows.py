"""Rows of tests that need plugins: they are skipped where one is off or its folder is deleted."""

from collections.abc import Mapping
from typing import Any

import pytest

from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.plugin import plugins, why_off


def has(plugin: str) -> bool:
    return plugin in plugins() and not why_off(plugin)


def of(plugin: str, *values: Any) -> list[Any]:
    """Return rows of one parameter that need a plugin."""
    return [pytest.param(value, marks=pytest.mark.plugin(plugin)) for value in values]


def of_task(sections: Mapping[str, Any], *values: Any) -> Any:
    """Return a row of parameters, marked with the plugin that an experiment's task needs."""
    task = sections.get("task", {}).get("name", DEFAULT_TASK)
    return pytest.param(*values, marks=() if task in TASKS.built_in else pytest.mark.plugin(task))
