"""Search files among the experiment files. No pydantic, torch or Optuna."""

from collections.abc import Mapping
from typing import Any

from vitcli.runner.experiment.kinds import FileKind

JOURNAL = "search.journal"
PRUNED = "pruned"
"""The beginning of the reason of a trial that a search stopped early."""


def files(plan: Mapping[str, Any]) -> tuple[str, ...]:
    if "sampler" not in plan:
        return ()
    return JOURNAL, f"{plan.get('study')}-confirm.yaml", "logs/journal.lock"


ROW = FileKind(
    name="search",
    command="search",
    fields="vitcli.plugins.search.definition:SearchFile",
    check="vitcli.plugins.search.definition:check_search",
    files=files,
)
