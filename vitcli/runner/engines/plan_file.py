"""The plan: what a process must know to train the trials of a folder, on any machine."""

import json
from pathlib import Path
from typing import Any

PLAN = "plan.json"
"""File in a folder of trials with the configuration of each, written before training."""


def read_plan(root: Path) -> dict[str, Any]:
    """Return the plan that the driver wrote before the first trial."""
    return dict(json.loads((root / PLAN).read_text()))
