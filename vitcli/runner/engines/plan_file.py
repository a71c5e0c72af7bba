"""The plan: what a process must know to train the trials of a folder, on any machine."""

from pathlib import Path
from typing import Any

from vitcli.runner.files import read_json

PLAN = "plan.json"
"""File in a folder of trials with the configuration of each, written before training."""


def read_plan(root: Path) -> dict[str, Any]:
    """Return the plan that the driver wrote before the first trial.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged.
    """
    return read_json(root / PLAN)
