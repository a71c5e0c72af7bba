"""The experiment that a command line chooses and changes."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vitcli.cli.console import say

if TYPE_CHECKING:
    from vitcli.runner.experiment.config import Experiment

SHORTCUTS = (
    *("seed", "train.epochs", "train.batch_size", "optim.lr", "train.precision"),
    *("train.limit_batches", "train.init", "data.name", "data.skip_bad"),
)
"""Fields that an option of 'vitcli train' sets."""
NAMES = {"data.name": "--data"}
"""Field -> the option that sets it, where the option is not called like the field."""


def option_names(fields: Iterable[str]) -> dict[str, str]:
    """Return field -> the option that sets it, such as ``--epochs`` for ``train.epochs``."""
    return {
        field: NAMES.get(field) or f"--{field.rpartition('.')[2].replace('_', '-')}"
        for field in fields
    }


def load_changed(
    name: str, changes: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> "Experiment":
    """Return an experiment with ``changes``, and print a note about them if there is one.

    ``options`` maps a field to the option that set it, if that is not ``--set``.
    """
    from vitcli.runner.experiment.config import load_experiment
    from vitcli.runner.run.record import named_as_run

    experiment = named_as_run(load_experiment(name, changes, options))
    if experiment.note:
        say(f"note: {experiment.note}")
    return experiment
