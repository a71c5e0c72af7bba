"""The tables and the figure of a factorial study, for docs/results/interactions.md."""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from study_tables import document, listed

from vitcli.plugins.factorial.effects import Effect, Scores, cell_scores, chance_score, effects
from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.study.result import StudyResult
from vitcli.runner.text import join_words

HEADER = (
    *("change", "other change", "effect without the other change"),
    *("effect with the other change", "interaction [95 % CI]"),
)


def interactions(name: str) -> str:
    """Return the clear interactions as a table, the undecided ones and what all explain."""
    doc = document(name)
    scores = cell_scores(doc)
    found = effects(doc.parts, scores, doc.planned_seeds)
    main = {each.parts[0]: each.value for each in found if len(each.parts) == 1}
    pairs = sorted((e for e in found if len(e.parts) == 2), key=lambda e: -abs(e.value))
    clear = [each for each in pairs if each.decided_at]
    rows = []
    for pair in clear:
        first, second = pair.parts
        alone, applied = main[first] - pair.value / 2, main[first] + pair.value / 2
        interval = f"{pair.value:+.2f} [{pair.low:+.2f}, {pair.high:+.2f}]"
        shown = [f"{alone:+.2f}", f"{applied:+.2f}", interval]
        rows.append([f"`{first}`", f"`{second}`", *shown])
    grid = markdown_grid(HEADER, rows, range(2, 5))
    said = [explained(doc, scores)]
    if clear:
        said.insert(0, on_log_odds(doc, scores, clear))
    if others := [named(each) for each in pairs if each not in clear]:
        said.insert(0, f"Undecided: {join_words(others)}.")
    return f"{grid if rows else 'No interaction of two parts is clear.'}\n\n{listed(said)}"


def named(effect: Effect) -> str:
    """Return the parts of an effect, such as ```no-ffn` x `no-norm```."""
    return " x ".join(f"`{part}`" for part in effect.parts)


def on_log_odds(doc: StudyResult, scores: Scores, clear: Sequence[Effect]) -> str:
    """Return which of these interactions remain on a scale that has no floor at chance level."""
    chance = chance_score(doc)
    assert chance is not None, "a table of accuracies"
    if any(not chance < y < 100 for found in scores.values() for y in found.values()):
        return "A trial is not above chance level, so no scale without a floor is possible."
    odds = {
        cell: {seed: math.log((y - chance) / (100 - y)) for seed, y in found.items()}
        for cell, found in scores.items()
    }
    again = {each.parts: each for each in effects(doc.parts, odds, doc.planned_seeds)}
    remain = [
        each
        for each in clear
        if again[each.parts].decided_at and again[each.parts].value * each.value > 0
    ]
    lost = [named(each) for each in clear if each not in remain]
    kept = f"{len(remain)} of these" if lost else "all of these"
    text = (
        f"On the scale log((accuracy - {chance:g}) / (100 - accuracy)), without a floor at chance"
        f" level, {kept} interactions remain (same sign)"
    )
    return f"{text}. Undecided there: {join_words(lost)}." if lost else f"{text}."


def explained(doc: StudyResult, scores: Scores) -> str:
    """Return the shares of the variance between cells of parts, pairs and the rest."""
    means = np.array([fmean(found.values()) for found in scores.values()])
    signs = np.array([[1.0 if part in cell else -1.0 for part in doc.parts] for cell in scores])
    count = len(doc.parts)
    pairs = [signs[:, i] * signs[:, j] for i in range(count) for j in range(i)]
    total = float(((means - means.mean()) ** 2).sum())

    def share(columns: list[np.ndarray]) -> float:
        design = np.column_stack([np.ones(len(means)), *columns])
        fitted = design @ np.linalg.lstsq(design, means, rcond=None)[0]
        return 1 - float(((means - fitted) ** 2).sum()) / total

    alone, both = share([*signs.T]), share([*signs.T, *pairs])
    return (
        f"Of the variance between the {len(means)} cells, the single parts explain"
        f" {100 * alone:.0f} %, interactions of two parts {100 * (both - alone):.0f} %, and"
        f" interactions of more parts with the chance of the seeds {100 * (1 - both):.0f} %."
    )


def beside(name: str, change: str) -> str:
    """Return what a change does alone, and beside each other change."""
    doc = document(name)
    scores = cell_scores(doc)
    pairs = [each for each in effects(doc.parts, scores, doc.planned_seeds) if len(each.parts) == 2]
    known = [f"`{' x '.join(e.parts)}`" for e in pairs if change in e.parts and e.decided_at]
    said = f"no interaction of `{change}` is clear"
    if known:
        which = "this interaction is" if len(known) == 1 else "these interactions are"
        said = f"{which} clear: {join_words(known)}"
    rows = []
    for other in (None, *(part for part in doc.parts if part != change)):
        cell = frozenset([other] if other else [])
        before, after = (scores[each] for each in (cell, cell | {change}))
        shown = [", ".join(f"{y:.2f}" for y in each.values()) + " %" for each in (before, after)]
        gap = fmean(after.values()) - fmean(before.values())
        rows.append([f"`{other}`" if other else "none", *shown, f"{gap:+.2f}"])
    header = ["other change", "accuracy", f"accuracy with `{change}`", "difference"]
    grid = markdown_grid(header, rows, range(1, 4))
    return f"{grid}\n\nOver all combinations, {said}."
