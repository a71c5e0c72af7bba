"""Rows of tests that need plugins: they are skipped where one is off or its folder is deleted."""

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from vitcli.core.spec.task import DEFAULT_TASK, TASKS
from vitcli.plugin import plugins, why_off
from vitcli.runner.experiment.yaml_text import read_mapping

EVERY = (
    *("bench", "choose", "clip", "data_check", "decide", "dino", "distance", "distil"),
    *("embeddings", "explain", "exports", "factorial", "faithfulness", "fusion", "hf", "lejepa"),
    *("live", "mae", "page", "parquet", "probe", "ray", "review", "search", "slurm", "ssat"),
    *("table", "targets", "timm", "trackers", "views", "weights"),
)
"""The names of vitcli's plugins, also of those whose folders are deleted."""
FILES = {
    "experiments/test_claims.py": "explain",
    "gpu_stub/test_data.py": "bench",
    "gpu_stub/test_steps.py": "bench",
    "judges/test_grad_cam.py": "explain",
    "judges/test_r.py": "factorial",
    "judges/test_timm.py": "timm",
}
"""File of tests -> the plugin that it imports."""


def has(plugin: str) -> bool:
    assert plugin in EVERY
    return plugin in plugins() and not why_off(plugin)


def of(plugin: str, *values: Any) -> list[Any]:
    """Return rows of one parameter that need a plugin."""
    return [pytest.param(value, marks=pytest.mark.plugin(plugin)) for value in values]


def of_task(sections: Mapping[str, Any], *values: Any) -> Any:
    """Return a row of parameters, marked with the plugin that an experiment's task needs."""
    task = sections.get("task", {}).get("name", DEFAULT_TASK)
    return pytest.param(*values, marks=() if task in TASKS.built_in else pytest.mark.plugin(task))


def of_file(path: Path, value: Any) -> Any:
    """Return a row of one parameter, marked with the plugins that a file of experiments/ needs."""
    return pytest.param(value, marks=pytest.mark.plugin(*sorted(needed_by(path))))


@cache
def needed_by(path: Path) -> set[str]:
    """Return the plugins that an experiment, study or search and its bases need."""
    found, fields = set[str](), dict(_leaves(read_mapping(path).data))
    for field, value in fields.items():
        if field == "base" and "task.name" in fields:  # nothing of the base's task is left
            continue
        if field.split(".")[-1] in ("base", "experiment"):
            found |= needed_by(path.with_name(f"{value}.yaml"))
        if field == "design" or (field.endswith("task.name") and value not in TASKS.built_in):
            found.add(value)
        if field.startswith("search."):
            found.add("search")
    return found


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
