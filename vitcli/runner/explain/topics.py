"""The topics of ``vitcli explain``, and what stands before them. This module loads no torch."""

import tomllib
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.text import did_you_mean

OVERVIEW: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lessons.toml").read_text())
TOPICS: dict[str, dict[str, Any]] = OVERVIEW.pop("topic")
"""Topic -> its texts. ``explain_NAME`` in ``shown.py`` computes the numbers."""


def check_topic(name: str) -> str:
    if name not in TOPICS:
        hint = did_you_mean(name, TOPICS) or f"; the topics are {', '.join(TOPICS)}"
        raise ConfigError(f"{name}: no such topic{hint}")
    return name
