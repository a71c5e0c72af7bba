"""The claims as text: Markdown, JSON, and one offline HTML page."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from vitcli.runner.claims.item import SOURCES, Finding, Item, Word
from vitcli.runner.text import join_words

Findings = Mapping[str, Finding]
FORMATS = ("text", "md", "json", "html")


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


def as_markdown(items: Sequence[Item], findings: Findings) -> str:
    """Return a table of the judged items and, below, one of the others."""
    judged, others = [], []
    for item in items:
        if finding := findings.get(item.id):
            found = f"{finding.found} ({finding.hardware})" if finding.hardware else finding.found
            cells = [item.id, item.text, finding.said, found, item.test, f"`{item.command}`"]
            judged.append(cells)
        else:
            others.append([item.id, item.text, item.kind, item.where, f"`{item.command}`"])
    tables = []
    if judged:
        tables.append(
            _grid(["id", "statement", "verdict", "found", "refuted by", "command"], judged)
        )
    if others:
        tables.append(_grid(["id", "item", "kind", "where", "command"], others))
    return "\n\n".join(tables)


def _grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def as_json(items: Sequence[Item], findings: Findings) -> list[dict[str, Any]]:
    """Return one record per item; ``verdict`` and what follows it only for claims and results."""
    return [
        {
            "id": item.id,
            "source": item.source,
            "where": item.where,
            "kind": item.kind,
            "statement": item.text,
            "command": item.command,
        }
        | ({"refuted_by": item.test} if item.test else {})
        | (vars(findings[item.id]) if item.id in findings else {})
        for item in items
    ]


def as_html(items: Sequence[Item], findings: Findings) -> str:
    """Return an offline page: the judged items by source, then the other items."""
    loader = ChoiceLoader([PackageLoader(f"vitcli.runner.{room}") for room in ("claims", "study")])
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    groups = [
        (name, [item for item in items if item.source == name and item.is_judged])
        for name in SOURCES.values()
    ]
    return environment.get_template("claims.html").render(
        groups=[(name, found) for name, found in groups if found],
        others=[item for item in items if not item.is_judged],
        findings=findings,
        counts=count_verdicts({item.id: findings[item.id] for item in items if item.is_judged}),
    )


def render(items: Sequence[Item], findings: Findings, form: str) -> str:
    """Return the items in a format other than plain text."""
    if form == "html":
        return as_html(items, findings)
    if form == "json":
        return json.dumps(as_json(items, findings), indent=2, ensure_ascii=False)
    return as_markdown(items, findings)
