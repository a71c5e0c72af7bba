"""The table and the sentences of docs/how-to/search.md about the samplers, from benchmark.json."""

import json
from pathlib import Path
from typing import Any

from vitcli.runner.report.tables import markdown_grid
from vitcli.runner.text import capitalize, join_words

RESULT = Path(__file__).parent / "benchmark.json"
TITLES = {"random": "random search", "evolution": "evolution", "tpe": "TPE"}


def samplers() -> str:
    """Return the mean regret of each sampler at each budget, and its difference from random."""
    found = json.loads(RESULT.read_text())
    budgets = list(found["table"])
    rows = [
        [title, *(_cell(found["table"][budget][name]) for budget in budgets)]
        for name, title in TITLES.items()
    ]
    header = ["sampler", *(f"regret after {budget}" for budget in budgets)]
    scores = found["scores"]
    return (
        f"{markdown_grid(header, rows, range(1, len(header)))}\n\n"
        f"Points of validation accuracy below the best of {found['configurations']} configurations:"
        f" mean of {found['repetitions']} searches. In brackets, the difference from random search"
        f" with its paired 95 % interval; below 0 is better. Best score"
        f" {100 * scores['best']:.2f} %; standard deviation {100 * scores['sd']:.2f} over the"
        f" configurations and {100 * found['seed_sd']:.2f} over the seeds of"
        f" {found['repeated_configurations']} configurations."
    )


def _cell(row: dict[str, Any]) -> str:
    regret = f"{100 * row['regret']:.2f}"
    if "low" not in row:
        return regret
    mean, low, high = (-100 * row[key] for key in ("difference", "high", "low"))
    return f"{regret} ({mean:+.2f} [{low:+.2f}, {high:+.2f}])"


def samplers_say() -> str:
    """Return which sampler beats random search on the table, and what the control shows."""
    found = json.loads(RESULT.read_text())
    lines = []
    for name, won in found["verdicts"]["beats_random_at"].items():
        lost = [int(budget) for budget in found["table"] if int(budget) not in won]
        texts = (("better points of this table", won), ("no better points", lost))
        said = [
            f"finds {what} than random search with {join_words(map(str, budgets))} trainings"
            for what, budgets in texts
            if budgets
        ]
        lines.append(f"- {capitalize(TITLES[name])} {' and '.join(said)}.")
    largest = found["verdicts"]["largest_difference_shuffled_sd"]
    ties = "passes" if found["verdicts"]["shuffled_ties"] else "fails"
    lines.append(
        f"- The control {ties}: on shuffled tables the largest difference from random search is"
        f" {largest:.3f} standard deviations."
    )
    return "\n".join(lines)
