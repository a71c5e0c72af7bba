"""The verdict on every claim and result: recorded in a file, and computed again on request."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitcli.runner.claims import course_report, lecture_notes, training_notes
from vitcli.runner.claims.item import Finding, Item, Word
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.text import did_you_mean

ITEMS: dict[str, Item] = {
    item.id: item
    for items in (training_notes.ITEMS, lecture_notes.ITEMS, course_report.ITEMS)
    for item in items
}
RECORDED = Path(__file__).with_name("recorded.json")
"""The verdicts of this release: computed, or from the results in ``experiments/results``."""


def select(ids: Sequence[str], *, all_items: bool = False) -> list[Item]:
    """Return the items with these ids, each once; without ids, the judged items or all.

    Raises:
        ConfigError: There is no such id.
    """
    names = dict.fromkeys(name.upper() for name in ids)
    for name in names:
        if name not in ITEMS:
            raise ConfigError(f"no claim {name!r}{did_you_mean(name, ITEMS)}; see vitcli claims")
    if names:
        return [ITEMS[name] for name in names]
    return [item for item in ITEMS.values() if all_items or item.is_judged]


def read_recorded() -> dict[str, Finding]:
    """Return id -> recorded verdict."""
    return {name: Finding(**fields) for name, fields in json.loads(RECORDED.read_text()).items()}


def judge(item: Item, results: Path | None, before: Word = "no verdict") -> Finding:
    """Return the verdict on a claim or result, computed now.

    Args:
        item: A judged item.
        results: Folder of result files; None if there is none.
        before: The recorded verdict.

    Raises:
        InputError: It has a recorded verdict and needs result files that are damaged or not there.
    """
    from vitcli.runner.claims.by_computation import COMPUTATIONS
    from vitcli.runner.claims.by_results import FROM_RESULTS
    from vitcli.runner.claims.result_files import Results

    if item.id in COMPUTATIONS:
        return COMPUTATIONS[item.id]()
    if not results:
        raise InputError("it needs result files")
    found = FROM_RESULTS[item.id](Results(results))
    if found.verdict == "no verdict" != before:
        raise InputError(found.found)
    return found


def as_record(findings: Mapping[str, Finding]) -> dict[str, Any]:
    """Return the content of the file of recorded verdicts."""
    return {name: asdict(finding) for name, finding in findings.items()}
