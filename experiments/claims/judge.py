"""The verdict on every claim and result: recorded in a file, and computed again on request."""

import json
from pathlib import Path

from experiments.claims import course_report, lecture_notes, training_notes
from experiments.claims.by_computation import COMPUTATIONS
from experiments.claims.by_results import FROM_RESULTS
from experiments.claims.item import Finding, Item, Word
from experiments.claims.result_files import Results
from vitcli.runner.errors import InputError

ITEMS: dict[str, Item] = {
    item.id: item
    for items in (training_notes.ITEMS, lecture_notes.ITEMS, course_report.ITEMS)
    for item in items
}
JUDGED = [item for item in ITEMS.values() if item.is_judged]
"""The claims and results."""
RECORDED = Path(__file__).with_name("recorded.json")
"""The verdicts of this release: computed, or from the results in ``experiments/results``."""


def read_recorded() -> dict[str, Finding]:
    """Return id -> recorded verdict."""
    return {name: Finding(**fields) for name, fields in json.loads(RECORDED.read_text()).items()}


def judge(item: Item, results: Path, before: Word = "no verdict") -> Finding:
    """Return the verdict on a claim or result, computed now.

    Args:
        item: A judged item.
        results: Folder of result files.
        before: The recorded verdict.

    Raises:
        InputError: It has a recorded verdict and needs result files that are damaged or not there.
    """
    if item.id in COMPUTATIONS:
        return COMPUTATIONS[item.id]()
    found = FROM_RESULTS[item.id](Results(results))
    if found.verdict == "no verdict" != before:
        raise InputError(found.found)
    return found
