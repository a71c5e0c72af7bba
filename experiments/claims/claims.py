"""The verdict on every claim and result of the sources, recorded, and shown in docs/results.

    python experiments/claims/claims.py                  judge all, record, write the page's tables
    python experiments/claims/claims.py --check          judge all again and compare
    python experiments/claims/claims.py --check S2-21    judge some again and compare

Results of trainings are read from experiments/results. A check ends with exit code 6 if a verdict
differs from the recorded one, and with 3 or 4 if some or all could not be judged again.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.claims.by_computation import COMPUTATIONS
from experiments.claims.item import Finding, Item
from experiments.claims.judge import (
    ITEMS,
    JUDGED,
    RECORDED,
    judge,
    read_recorded,
)
from experiments.claims.render import others_table, recorded_table
from vitcli.runner.errors import CheckError, InputError, PartlyError, UserError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PAGE = ROOT / "docs/results/claims.md"


def record() -> None:
    """Judge every claim and result and record the verdicts.

    A computed verdict keeps its numbers if they are close: the last digits depend on the machine.
    """
    before = read_recorded()
    findings = {}
    for item in JUDGED:
        found, old = judge(item, RESULTS), before.get(item.id)
        if old and item.id in COMPUTATIONS and is_close(old, found):
            found = replace(found, found=old.found)
        findings[item.id] = asdict(found)
    RECORDED.write_text(f"{json.dumps(findings, indent=1, ensure_ascii=False)}\n")


NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d+)?(e-?\d+)?")


def is_close(one: Finding, other: Finding) -> bool:
    """Tell whether two findings have the same verdict and words, and numbers that are close."""
    words = [(each.verdict, NUMBER.sub("", each.found)) for each in (one, other)]
    pairs = zip(NUMBER.finditer(one.found), NUMBER.finditer(other.found), strict=False)
    numbers = [[float(number[0].replace(",", "")) for number in pair] for pair in pairs]
    close = [math.isclose(*pair, rel_tol=0.1, abs_tol=0.011) for pair in numbers]
    return words[0] == words[1] and all(close)


TABLES = {"claims": recorded_table, "other-items": others_table}
"""Name of a table of the page -> the function that makes it."""


def write_page() -> None:
    """Replace the tables of the page."""
    page = PAGE.read_text()
    for name, table in TABLES.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"\n<!-- /{name} -->")
        page = f"{before}{begin}{table()}{end}{after}"
    PAGE.write_text(page)


def check(items: Sequence[Item], results: Path) -> None:
    """Judge items again and print each verdict.

    Raises:
        CheckError: A recorded verdict differs.
        InputError: No item can be judged again.
        PartlyError: Some items cannot.
    """
    recorded, changed, failed = read_recorded(), [], []
    for item in items:
        before = recorded[item.id].verdict
        try:
            found = judge(item, results, before)
        except InputError as error:
            print(f"{item.id}  not checked: {error}")  # noqa: T201
            failed.append(item.id)
            continue
        print(f"{item.id}  {found.said}: {found.found}")  # noqa: T201
        if found.verdict != before:
            changed.append(f"{item.id}: {found.verdict}, recorded {before}")
    if changed:
        raise CheckError("; ".join(changed))
    if failed:
        kind = PartlyError if len(failed) < len(items) else InputError
        raise kind(f"{len(failed)} of {len(items)} not checked")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", nargs="*", metavar="ID", help="compare with the recorded verdicts"
    )
    ids = parser.parse_args().check
    if ids is None:
        record()
        write_page()
        return
    names = [item.id for item in JUDGED]
    if unknown := set(ids) - set(names):
        parser.error(f"no claim {', '.join(sorted(unknown))}; the claims are {', '.join(names)}")
    try:
        check([ITEMS[name] for name in ids or names], RESULTS)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
