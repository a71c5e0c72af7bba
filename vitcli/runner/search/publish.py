"""The files of a search: the document, the figures and a page.

The page is inert: it has no script, loads nothing from the network, and its content-security policy
forbids both. Names are escaped.
"""

from functools import partial
from pathlib import Path
from typing import Any

from vitcli.runner import pages
from vitcli.runner.figure_style import write_figures
from vitcli.runner.files import commit, commit_json
from vitcli.runner.search.figures import figures_of
from vitcli.runner.search.result import (
    RESULTS,
    SearchResult,
    best_table,
    score_text,
)
from vitcli.runner.search.trial import SearchTrial
from vitcli.runner.tables import to_csv

CAPTIONS = {
    "fields": "Score of each trial by each field that varies.",
    "pareto": "Score of each trial against its cost. No trial is above and left of the front.",
    "course": "Score of each trial in the order of the search, and the best so far.",
}
PAGE, TABLE = "report.html", "table.csv"


def publish(doc: SearchResult, root: Path) -> None:
    """Write the figures, the page, the table of all trials and, last, the document."""
    figures = write_figures(figures_of(doc), root / "figures")
    commit(root / PAGE, html(doc, figures).encode())
    commit(root / TABLE, table_csv(doc).encode())
    commit_json(root / RESULTS, doc.model_dump(mode="json"))


def table_csv(doc: SearchResult) -> str:
    """Return all trials and repeats as CSV, one a row, in the order of the search."""
    facts = (
        "config_hash",
        "seed",
        "state",
        "score",
        "parameters",
        "forward_flops",
        "train_seconds",
    )
    rows = (
        [*map(trial.point.get, doc.space), *(getattr(trial, name) for name in facts)]
        for trial in (*doc.trials, *doc.repeats)
    )
    return to_csv([[*doc.space, *facts], *rows])


def html(doc: SearchResult, figures: dict[str, Path]) -> str:
    """Return the page as HTML; ``figures`` maps file names to the figures to embed."""
    return pages.render(
        "search.html",
        doc=doc,
        best=best_table(doc),
        score=lambda trial: score_text(doc, trial),
        figures=pages.embedded_figures(figures, CAPTIONS, partial(_alt, doc)),
        facts=environment_facts(doc.trials),
    )


def environment_facts(trials: tuple[SearchTrial, ...]) -> dict[str, str]:
    """Return what the trials were trained on; several values where the trials differ."""
    names = ("hardware", "threads", "precision", "torch", "commit", "data_hash")
    found: dict[str, Any] = {
        name: dict.fromkeys(getattr(trial, name) for trial in trials) for name in names
    }
    return {
        name.replace("_", " "): ", ".join(str(value) for value in values if value)
        for name, values in found.items()
        if any(values)
    }


def _alt(doc: SearchResult, name: str) -> str:
    trials = doc.front if name == "pareto" else doc.trials
    shown = [f"{score_text(doc, trial)} with {trial.parameters:,} parameters" for trial in trials]
    return f"{CAPTIONS[name]} {'; '.join(shown)}"
