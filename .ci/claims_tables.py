"""The tables of docs/claims.md, and the file of recorded verdicts that they are made from."""

import json
from dataclasses import replace
from pathlib import Path


def record_claims(results: Path) -> None:
    """Judge every claim and result and record the verdicts.

    A computed verdict that stays the same keeps its numbers: the last digits differ between
    machines.
    """
    from vitcli.runner.claims.by_computation import COMPUTATIONS
    from vitcli.runner.claims.judge import RECORDED, as_record, judge, read_recorded, select

    before = read_recorded() if RECORDED.exists() else {}
    findings = {}
    for item in select([]):
        found, old = judge(item, results), before.get(item.id)
        assert found is not None, "the folder of results is there"
        is_computed = item.id in COMPUTATIONS
        is_same = is_computed and old is not None and old.verdict == found.verdict
        findings[item.id] = replace(found, found=old.found) if old and is_same else found
    text = json.dumps(as_record(findings), indent=1, ensure_ascii=False)
    RECORDED.write_text(f"{text}\n")


def claims(*, are_judged: bool) -> str:
    """Return the table of the judged items, or that of the other items."""
    from vitcli.runner.claims.judge import read_recorded, select
    from vitcli.runner.claims.render import as_markdown, count_verdicts

    items = [item for item in select([], all_items=True) if item.is_judged == are_judged]
    found = read_recorded()
    counts = f"{count_verdicts(found)}.\n\n" if are_judged else ""
    return counts + as_markdown(items, found)
