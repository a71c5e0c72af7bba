"""The tables of docs/claims.md, and the file of recorded verdicts that they are made from."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitcli.runner.claims.item import Finding


def record_claims(results: Path) -> None:
    """Judge every claim and result and record the verdicts.

    A computed verdict keeps its numbers if only they differ: the last digits depend on the machine.
    """
    from vitcli.runner.claims.by_computation import COMPUTATIONS
    from vitcli.runner.claims.judge import RECORDED, as_record, judge, read_recorded, select

    before = read_recorded() if RECORDED.exists() else {}
    findings = {}
    for item in select([]):
        found, old = judge(item, results), before.get(item.id)
        assert found is not None, "the folder of results is there"
        if old and item.id in COMPUTATIONS and without_numbers(old) == without_numbers(found):
            found = replace(found, found=old.found)
        findings[item.id] = found
    text = json.dumps(as_record(findings), indent=1, ensure_ascii=False)
    RECORDED.write_text(f"{text}\n")


def without_numbers(finding: "Finding") -> tuple[str, str]:
    """Return a verdict and its text without numbers."""
    return finding.verdict, re.sub(r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?", "", finding.found)


def claims(*, are_judged: bool) -> str:
    """Return the table of the judged items, or that of the other items."""
    from vitcli.runner.claims.judge import read_recorded, select
    from vitcli.runner.claims.render import as_markdown, count_verdicts

    items = [item for item in select([], all_items=True) if item.is_judged == are_judged]
    found = read_recorded()
    counts = f"{count_verdicts(found)}\n\n" if are_judged else ""
    return counts + as_markdown(items, found)
