"""The claims as Markdown."""

from collections import Counter
from collections.abc import Mapping

from experiments.claims.item import Finding, Word
from experiments.claims.judge import ITEMS, JUDGED, read_recorded
from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.text import join_words

Findings = Mapping[str, Finding]


COUNTED: dict[Word, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "in part": ("holds in part", "hold in part"),
    "refuted": ("is refuted", "are refuted"),
    "undecided": ("is undecided", "are undecided"),
    "no verdict": ("has no verdict", "have no verdict"),
}
"""Verdict -> how a sentence says it of one claim, and of several."""


def count_verdicts(findings: Findings) -> str:
    """Return how many verdicts there are: ``Of 9 claims and results, 8 hold and 1 is refuted.``"""
    counts = Counter(finding.verdict for finding in findings.values())
    parts = [
        f"{counts[word]} {COUNTED[word][counts[word] > 1]}{_settings(findings, word)}"
        for word in COUNTED
        if counts[word]
    ]
    return f"Of {counts.total()} claims and results, {join_words(parts)}."


def _settings(findings: Findings, word: Word) -> str:
    """Return how many of these verdicts hold in which setting only: `` (2 of them after ...)``."""
    known = [finding for finding in findings.values() if finding.verdict == word]
    counts = Counter(finding.setting for finding in known if finding.setting)
    if not counts:
        return ""
    texts = [f"{count} {setting}" for setting, count in sorted(counts.items())]
    return f" ({', '.join(texts)})" if len(known) == 1 else f" (of them {', '.join(texts)})"


def recorded_table() -> str:
    """Return how many verdicts are recorded, and a table of the claims and results with them."""
    findings, rows = read_recorded(), []
    for item in JUDGED:
        finding = findings[item.id]
        found = f"{finding.found} ({finding.hardware})" if finding.hardware else finding.found
        rows.append([item.id, item.text, finding.said, found, item.test, f"`{item.command}`"])
    header = ["id", "statement", "verdict", "found", "refuted by", "command"]
    return f"{count_verdicts(findings)}\n\n{markdown_grid(header, rows)}"


def others_table() -> str:
    """Return a table of the items that have no verdict."""
    items = [item for item in ITEMS.values() if not item.is_judged]
    rows = [[item.id, item.text, item.kind, item.where, f"`{item.command}`"] for item in items]
    return markdown_grid(["id", "item", "kind", "where", "command"], rows)
