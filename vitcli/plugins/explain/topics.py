"""The topics of ``vitcli explain``, and what stands before them. This module loads no torch."""

import tomllib
from pathlib import Path
from typing import Any

OVERVIEW: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lessons.toml").read_text())
TOPICS: dict[str, dict[str, Any]] = OVERVIEW.pop("topic")
"""Topic -> its texts. ``explain_NAME`` in ``shown.py`` computes the numbers."""
