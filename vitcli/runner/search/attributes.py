"""What the storage of a search notes about a trial, besides its point and its score. No Optuna."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FOLDER, RULE, FAILED, DIVERGED = "folder", "rule", "failed", "diverged"
"""Names of attributes of a trial: its run folder, the rule that its point breaks, and why it has no
score."""
REPEATED = "a configuration of an earlier trial"
KILLED = "the search was killed before the point was complete"


def is_evaluated(trial: "FrozenTrial") -> bool:
    """Return whether a trial used up a part of the search's budget."""
    return trial.state.name in ("COMPLETE", "PRUNED") or DIVERGED in trial.user_attrs


def is_lost(trial: "FrozenTrial") -> bool:
    """Return whether a trial says nothing about its point: it failed, or was never begun."""
    return FAILED in trial.user_attrs or trial.user_attrs.get(RULE) == KILLED
