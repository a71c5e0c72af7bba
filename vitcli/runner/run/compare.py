"""Comparison of two runs."""

from dataclasses import dataclass
from typing import Any

from vitcli.core.spec.task import TaskRow
from vitcli.runner.experiment.diff import Change, differences
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import last_measures

MEASURES = (
    "test_accuracy",
    "test_loss",
    "test_top5_accuracy",
    "calibration_error",
    "val_accuracy",
    "train_loss",
    "train_accuracy",
    "parameters",
    "epochs",
    "train_seconds",
    "images_per_second",
)
"""Numbers of most tasks and the numbers of a classification, in the order of the comparison."""
FACTS = ("data_hash", "commit", "dirty", "torch", "hardware", "device", "threads")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences between two runs and their measures; each value is a pair."""

    config: dict[str, Change]
    facts: dict[str, Change]
    measures: dict[str, Change]


def task_measures(row: TaskRow) -> list[str]:
    """Return the names in a run's files of the task's numbers that ``MEASURES`` does not have."""
    names = [
        *(f"test_{name}" for name in row.numbers),
        f"val_{row.headline.name}",
        *(f"train_{name}" for name in row.reports),
    ]
    return [name for name in names if name not in MEASURES]


def compare_runs(one: RunDir, other: RunDir) -> Comparison:
    """Compare the configurations, environments and measures of two runs."""
    facts = [run.read("meta.json") for run in (one, other)]
    measures = [last_measures(run) for run in (one, other)]
    own = [name for run in (one, other) for name in task_measures(run.spec().task.row)]
    return Comparison(
        config=differences(one.spec(), other.spec()),
        facts={k: (a, b) for k, (a, b) in _pairs(facts, FACTS).items() if a != b},
        measures=_pairs(measures, tuple(dict.fromkeys([*own, *MEASURES]))),
    )


def _pairs(sides: list[dict[str, Any]], names: tuple[str, ...]) -> dict[str, Change]:
    """Return both values of each name that at least one side has."""
    pairs = {name: (sides[0].get(name), sides[1].get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair != (None, None)}
