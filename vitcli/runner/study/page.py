"""A study on one page: table, figures, configurations and environment, in a file without network.

The page is inert: no script, and a content-security policy that allows none; names are escaped.
"""

import base64
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vitcli.runner.files import commit
from vitcli.runner.study.figures import FIGURES, FORMATS, write_figures
from vitcli.runner.study.notes import seconds
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.statistics import compare
from vitcli.runner.study.table import render, setting_text, signed

CAPTIONS = {
    "forest": "Difference of each variant to the baseline, paired by seed: circles are single"
    " seeds, squares their mean, bars the 95 % t interval. Where the bar crosses the line, these"
    " seeds do not tell the variant from the baseline.",
    "curves": "Accuracy after each epoch: mean over the finished seeds (their number in brackets),"
    " shaded from the lowest to the highest.",
}


def write_report(doc: StudyResult, root: Path) -> list[Path]:
    """Write ``figures/`` and ``report.html`` under ``root``; return what was written."""
    figures = write_figures(doc, root / "figures")
    page = root / "report.html"
    commit(page, html(doc, figures).encode())
    return [*figures.values(), page]


def written_files() -> list[str]:
    """What ``write_report`` writes, below the study's folder."""
    return [f"figures/{name}.{form}" for name in FIGURES for form in FORMATS] + ["report.html"]


def html(doc: StudyResult, figures: dict[str, Path]) -> str:
    """The page; ``figures`` are the pictures to embed, by file name."""
    trials = [trial for row in doc.rows for trial in row.trials]
    return (
        _environment()
        .get_template("report.html")
        .render(
            doc=doc,
            # Escaped where it is made: formats.to_html.
            table=Markup(render(doc, "html")),
            figures=[
                {
                    "source": _embedded(figures[f"{name}.svg"]),
                    "alt": _alt(name, doc),
                    "caption": text,
                }
                for name, text in CAPTIONS.items()
            ],
            candidates=[(row, candidate) for row in doc.rows for candidate in row.candidates],
            num_trials=len(trials),
            num_finished=sum(trial.state == "finished" for trial in trials),
            environment=_facts(doc),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vitcli.runner.study"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "percent": lambda share: "" if share is None else f"{100 * share:.2f}",
        "decimals": lambda value: "" if value is None else f"{value:.4f}",
        "whole": lambda value: "" if value is None else f"{value:,.0f}",
        "seconds": seconds,
        "setting": setting_text,
        "tojson_text": lambda value: json.dumps(value, ensure_ascii=False),
    }
    return environment


def _embedded(picture: Path) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(picture.read_bytes()).decode()}"


def _alt(name: str, doc: StudyResult) -> str:
    """What a figure shows, for who cannot see it."""
    parts = []
    for found in compare(doc):
        if name == "curves":
            value = found.score_mean
            said = (
                "no result"
                if value is None
                else f"{value:.2f} {doc.headline.unit}".strip() + " in the end"
            )
        elif found.variant == doc.rows[0].variant:
            continue
        else:
            said = "no pair" if found.difference is None else signed(found.difference)
        parts.append(f"{found.variant} {said}")
    return f"{'Learning curves' if name == 'curves' else 'Differences'}: {'; '.join(parts)}"


def _facts(doc: StudyResult) -> dict[str, Any]:
    facts = {
        "hardware": ", ".join(doc.hardware),
        "CPU threads per trial": doc.threads,
        "precision": ", ".join(doc.precision),
        "torch": ", ".join(doc.torch),
        "code": ", ".join(doc.commits) + (" (with uncommitted changes)" if doc.dirty else ""),
        "data": doc.data,
        "data hash (SHA-256)": doc.data_hash,
        "images": ""
        if doc.num_train is None or doc.num_test is None
        else f"{doc.num_train:,} for training, {doc.num_test:,} for testing",
        "last trial": doc.date,
        "reference": doc.reference.source if doc.reference else "",
    }
    return {name: value for name, value in facts.items() if value}
