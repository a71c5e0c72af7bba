"""The tables and sentences of docs/search.md: samplers on a table, and the search for a model."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from sentences import study_sentences

from vitcli.runner.figure_style import encode
from vitcli.runner.search.figures import pareto
from vitcli.runner.search.result import SearchResult, best_rows, notes
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import read_document, render
from vitcli.runner.text import join_words

FOLDER = Path(__file__).resolve().parents[1] / "experiments" / "search"
BENCHMARK = FOLDER / "benchmark.json"
TITLES = {"random": "random search", "evolution": "evolution", "tpe": "TPE"}


def samplers() -> str:
    """Return the mean regret of each sampler at each budget, and its difference from random."""
    found = json.loads(BENCHMARK.read_text())
    budgets = list(found["table"])
    header = ["sampler", *(f"regret after {budget}" for budget in budgets)]
    rows = [f"| {' | '.join(header)} |", "|---" + "|---:" * len(budgets) + "|"]
    for name, title in TITLES.items():
        cells = [_cell(found["table"][budget][name]) for budget in budgets]
        rows.append(f"| {' | '.join([title, *cells])} |")
    scores = found["scores"]
    caption = (
        f"Points of validation accuracy below the best of {found['configurations']} configurations:"
        f" mean of {found['repetitions']} searches. In brackets, the difference from random search"
        f" with its paired 95 % interval; below 0 is better. Best score"
        f" {100 * scores['best']:.2f} %; standard deviation {100 * scores['sd']:.2f} over the"
        f" configurations and {100 * found['seed_sd']:.2f} over the seeds of"
        f" {found['repeated_configurations']} configurations."
    )
    return "\n".join([*rows, "", caption])


def _cell(row: dict[str, Any]) -> str:
    regret = f"{100 * row['regret']:.2f}"
    if "low" not in row:
        return regret
    mean, low, high = (-100 * row[key] for key in ("difference", "high", "low"))
    return f"{regret} ({mean:+.2f} [{low:+.2f}, {high:+.2f}])"


def samplers_say() -> str:
    """Return which sampler beats random search on the table, and what the control shows."""
    found = json.loads(BENCHMARK.read_text())
    beats = found["verdicts"]["beats_random_at"]
    lines = []
    for name, title in TITLES.items():
        if name == "random":
            continue
        won = beats[name]
        lost = [int(budget) for budget in found["table"] if int(budget) not in won]
        said = []
        if won:
            said.append(
                f"finds better points of this table than random search with {_budgets(won)}"
            )
        if lost:
            said.append(f"finds no better points than random search with {_budgets(lost)}")
        lines.append(f"{title[0].upper()}{title[1:]} {' and '.join(said)}.")
    largest = found["verdicts"]["largest_difference_shuffled_sd"]
    ties = "passes" if found["verdicts"]["shuffled_ties"] else "fails"
    lines.append(
        f"The control {ties}: on shuffled tables the largest difference from random search is"
        f" {largest:.3f} standard deviations."
    )
    return "\n".join(f"- {line}" for line in lines)


def _budgets(values: list[int]) -> str:
    return f"{join_words([str(value) for value in values])} trainings"


def found(name: str) -> str:
    """Return the best trials of a search with the notes on them."""
    doc = _search(name)
    header, rows = best_rows(doc, 5)
    lines = [header, ["---"] * len(header), *rows]
    table = "\n".join(f"| {' | '.join(each)} |" for each in lines)
    return "\n".join([table, "", *(f"- {note}" for note in notes(doc))])


def final(name: str) -> str:
    """Return the table of the final stage of a search, and what it shows."""
    doc = read_document((FOLDER / f"{name}-final.json").read_text())
    said = study_sentences(compare(doc), same_setting=False)
    return "\n".join([render(doc, "md"), "", *(f"- {sentence}" for sentence in said)])


def draw(name: str) -> None:
    """Draw the Pareto figure of a search beside its document."""
    (FOLDER / f"{name}.png").write_bytes(encode(partial(pareto, _search(name)), "png"))


def _search(name: str) -> SearchResult:
    return SearchResult.model_validate_json((FOLDER / f"{name}.json").read_text())
