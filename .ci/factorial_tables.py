"""The tables and the figure of a factorial study, for docs/interactions.md."""

import json
import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from sentences import LEVEL
from study_tables import RESULTS, document

from vitcli.runner.text import join_words

if TYPE_CHECKING:
    from vitcli.runner.study.factorial import Effect, Scores
    from vitcli.runner.study.result import StudyResult

SIMULATION = RESULTS / "statistics" / "factorial.json"
TABLE_HEAD = (
    "| change | other change | effect without the other change | effect with the other change"
    " | interaction [95 % CI] | p (Holm) |",
    "|---|---|---:|---:|---:|---:|",
)
COLUMNS = {
    "single": "an effect, unadjusted",
    "any": "any effect, after Holm",
    "higher": "three or more parts",
    "pooled": "an effect, if one variance is assumed",
}


def interactions(name: str) -> str:
    """Return the clear interactions as a table, the undecided ones and what all explain."""
    from vitcli.runner.study.cells import p_text
    from vitcli.runner.study.effects import cell_scores
    from vitcli.runner.study.factorial import effects

    doc = document(name)
    scores = cell_scores(doc)
    found = effects(doc.parts, scores)
    main = {each.parts[0]: each.value for each in found if len(each.parts) == 1}
    pairs = sorted((e for e in found if len(e.parts) == 2), key=lambda e: -abs(e.value))
    clear = [each for each in pairs if each.p_holm <= LEVEL]
    lines = [*TABLE_HEAD] if clear else ["No interaction of two parts is clear."]
    for pair in clear:
        first, second = pair.parts
        alone, applied = main[first] - pair.value / 2, main[first] + pair.value / 2
        lines.append(
            f"| `{first}` | `{second}` | {alone:+.2f} | {applied:+.2f}"
            f" | {pair.value:+.2f} [{pair.low:+.2f}, {pair.high:+.2f}] | {p_text(pair.p_holm)} |"
        )
    lines.append("")
    if others := [" x ".join(f"`{part}`" for part in e.parts) for e in pairs if e not in clear]:
        lines.append(f"- Undecided (p above {LEVEL:g}): {join_words(others)}.")
    if clear:
        lines.append(f"- {on_log_odds(doc, scores, clear)}")
    lines += [f"- {higher(doc, scores)}", f"- {explained(doc, scores)}"]
    return "\n".join(lines)


def on_log_odds(doc: "StudyResult", scores: "Scores", clear: "list[Effect]") -> str:
    """Return which of these interactions remain on a scale that has no floor at chance level."""
    from vitcli.runner.study.effects import chance_score
    from vitcli.runner.study.factorial import effects

    chance = chance_score(doc)
    assert chance is not None, "a table of accuracies"
    if any(not chance < y < 100 for found in scores.values() for y in found.values()):
        return "A trial is not above chance level, so no scale without a floor is possible."
    odds = {
        cell: {seed: math.log((y - chance) / (100 - y)) for seed, y in found.items()}
        for cell, found in scores.items()
    }
    again = {each.parts: each for each in effects(doc.parts, odds)}
    remain = [
        each
        for each in clear
        if again[each.parts].p_holm <= LEVEL and again[each.parts].value * each.value > 0
    ]
    lost = [" x ".join(f"`{part}`" for part in each.parts) for each in clear if each not in remain]
    kept = f"{len(remain)} of these" if lost else "all of these"
    text = (
        f"On the scale log((accuracy - {chance:g}) / (100 - accuracy)), without a floor at chance"
        f" level, {kept} interactions remain (same sign, p at most {LEVEL:g})"
    )
    return f"{text}. Undecided there: {join_words(lost)}." if lost else f"{text}."


def higher(doc: "StudyResult", scores: "Scores") -> str:
    """Return what is known of interactions of three or more parts."""
    from vitcli.runner.study.effects import f_text
    from vitcli.runner.study.factorial import higher_interactions

    test = higher_interactions(doc.parts, scores)
    if test is None:
        return "Interactions of three or more parts cannot be tested."
    if test.p > LEVEL:
        return f"Interactions of three or more parts are undecided: {f_text(test)}."
    return (
        f"Three or more parts interact: {f_text(test)}. So an interaction above is a mean, and it"
        " can differ from one combination of the other parts to the next."
    )


def explained(doc: "StudyResult", scores: "Scores") -> str:
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
    from vitcli.runner.study.effects import cell_scores, effect_name
    from vitcli.runner.study.factorial import effects

    doc = document(name)
    scores = cell_scores(doc)
    pairs = [each for each in effects(doc.parts, scores) if len(each.parts) == 2]
    known = [f"`{effect_name(e)}`" for e in pairs if change in e.parts and e.p_holm <= LEVEL]
    said = f"no interaction of `{change}` is clear"
    if known:
        said = f"these interactions are clear: {join_words(known)}"
    lines = [
        f"| other change | accuracy | accuracy with `{change}` | difference |",
        "|---|---:|---:|---:|",
    ]
    for other in (None, *(part for part in doc.parts if part != change)):
        cell = frozenset([other] if other else [])
        before, after = (scores[each] for each in (cell, cell | {change}))
        shown = [", ".join(f"{y:.2f}" for y in each.values()) for each in (before, after)]
        label = f"`{other}`" if other else "none"
        gap = fmean(after.values()) - fmean(before.values())
        lines.append(f"| {label} | {shown[0]} % | {shown[1]} % | {gap:+.2f} |")
    return "\n".join([*lines, "", f"Over all combinations, {said} (p at most {LEVEL:g})."])


def levels() -> str:
    """Return how often the tests err in studies without effects."""
    stored = json.loads(SIMULATION.read_text())
    rows = [f"| studies | {' | '.join(COLUMNS.values())} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for name, shares in stored["results"].items():
        cells = [f"{100 * shares[key]:.1f} %" for key in COLUMNS]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    made = f"{stored['date']}, commit {stored['commit'][:9]}"
    return "\n".join([*rows, "", f"{stored['studies']:,} studies a row ({made})."])


def draw_factorial(name: str) -> Path:
    """Draw the figure of interactions beside the result file."""
    from vitcli.runner.figure_style import encode
    from vitcli.runner.study.effect_figure import interactions as figure

    path = RESULTS / f"{name}.png"
    path.write_bytes(encode(partial(figure, document(name)), "png"))
    return path
