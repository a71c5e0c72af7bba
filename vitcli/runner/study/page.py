"""The files of a study's results: the document, the tables, the figures and the page.

The page has table, figures, configurations and environment in one HTML file. It is inert: it has no
script, loads nothing from the network, and its content-security policy forbids both. Names are
escaped.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitcli.core.spec.metrics import Metric
from vitcli.core.spec.task import TASKS
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.files import MAX_JSON, commit, make_output_folder, read_bounded
from vitcli.runner.report import pages
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.result import FIGURE_FORMATS, FIGURES, Candidate, StudyResult
from vitcli.runner.study.table import read_document, render
from vitcli.runner.text import capitalize, setting_text

RESULTS = "results.json"
FILES = {"table.md": "md", "table.tex": "latex", "table.csv": "csv", RESULTS: "json"}
TITLE = b"with vitcli</title>"


def publish_outside(doc: StudyResult, folder: Path, source: Path | None = None) -> list[Path]:
    if (folder / PLAN).exists():
        raise ConfigError(f"{folder}: the folder of a study; choose another folder")
    for path in _files(folder, doc.figures):
        if source and path.exists() and path.samefile(source):
            raise ConfigError(f"{path}: the results were read from it; choose another folder")
    refuse_foreign_files(folder, doc.figures)
    if (folder / RESULTS).exists():
        before = read_document(read_bounded(folder / RESULTS, MAX_JSON).decode())
        _refuse_changed_files(folder, before, doc)
    make_output_folder(folder)
    return publish(doc, folder)


def _refuse_changed_files(folder: Path, before: StudyResult, doc: StudyResult) -> None:
    """Refuse a folder whose files ``publish`` did not write from this source, or not so."""
    sources = [each.origin.file if each.origin else each.name for each in (before, doc)]
    if sources[0] != sources[1]:
        problem = f"the results of {sources[0]}; choose another folder"
        raise ConfigError(f"{folder / RESULTS}: {problem}")
    pages = [_texts(each, folder) for each in (before, doc)]  # a killed call has written some
    figures = {f"{name}.svg": folder / "figures" / f"{name}.svg" for name in before.figures}
    if all(path.is_file() for path in figures.values()):
        for page, each in zip(pages, (before, doc), strict=True):
            page[folder / "report.html"] = html(each, figures).encode()
    for path in pages[0]:
        if path.exists() and path.read_bytes() not in [page[path] for page in pages]:
            problem = "changed by a person or another version of vitcli"
            raise ConfigError(f"{path}: {problem}; move it away or choose another folder")


def refuse_foreign_files(folder: Path, figures: Iterable[str] = tuple(FIGURES)) -> None:
    """Refuse a folder in which ``publish`` would replace files that vitcli did not write.

    A document alone proves nothing: a person may have saved what ``--json`` prints.
    """
    if (folder / PLAN).exists():
        return
    there = [path for path in _files(folder, figures) if os.path.lexists(path)]
    try:
        if there:
            read_document(read_bounded(folder / RESULTS, MAX_JSON).decode())
            if TITLE not in read_bounded(folder / "report.html", MAX_JSON):
                raise ValueError("a page of another program")
    except (OSError, ValueError, UserError) as error:
        problem = "vitcli did not write this file; choose another folder"
        raise ConfigError(f"{there[0]}: {problem}") from error


def _files(folder: Path, figures: Iterable[str]) -> list[Path]:
    names = (f"figures/{name}.{form}" for name in figures for form in FIGURE_FORMATS)
    return [folder / name for name in (*reversed(FILES), "report.html", *names)]


def publish(doc: StudyResult, root: Path) -> list[Path]:
    """Write all files below ``root``, unless they exist with the same document; return them."""
    results = root / RESULTS
    content = _texts(doc, root)
    expected = _files(root, doc.figures)
    if all(path.is_file() for path in expected) and results.read_bytes() == content[results]:
        return expected
    from vitcli.runner.figure_style import write_figures  # matplotlib takes a second
    from vitcli.runner.study.figures import figures_of

    figures = write_figures(figures_of(doc), root / "figures")
    commit(root / "report.html", html(doc, figures).encode())
    for path, text in content.items():
        commit(path, text)  # the document comes last and marks all as written
    return expected


def _texts(doc: StudyResult, root: Path) -> dict[Path, bytes]:
    return {root / name: f"{render(doc, form)}\n".encode() for name, form in FILES.items()}


def html(doc: StudyResult, figures: dict[str, Path]) -> str:
    from vitcli.runner.study.figures import shown_seeds

    trials = [trial for row in doc.rows for trial in row.trials]
    count = max((len(row.contrast.by_class) for row in doc.rows if row.contrast), default=0)
    known = CATALOGUE[doc.data].info.class_names if doc.data in CATALOGUE else ()
    words = {"name": capitalize(doc.headline.label), "seeds": shown_seeds(doc)}
    captions = {name: FIGURES[name].caption.format(**words) for name in doc.figures}
    recorded = () if doc.origin else TASKS[doc.task].recorded
    return pages.render(
        "report.html",
        doc=doc,
        # to_html has escaped the names already.
        table=Markup(render(doc, "html", details=len(doc.rows) > 1)),
        figures=pages.embedded_figures(figures, captions, "{}: the table has its numbers".format),
        contrasts=[row for row in doc.rows if row.contrast],
        classes=known if len(known) == count else [f"class {i}" for i in range(count)],
        candidates=[(row, candidate) for row in doc.rows for candidate in row.candidates],
        num_trials=len(trials),
        num_finished=sum(trial.state == "finished" for trial in trials),
        score=partial(_score, doc.headline),
        setting_text=setting_text,
        others=[name for name in recorded if name != doc.headline.name],
        facts=_environment_facts(doc),
    )


def _score(headline: Metric, numbers: RunRecord | Candidate, split: str) -> str:
    value = numbers.number(f"{split}_{headline.name}")
    return "" if value is None else f"{headline.scale * value:.{headline.digits}f}"


def _environment_facts(doc: StudyResult) -> dict[str, Any]:
    if doc.origin:
        names = {"file": "file", "sha256": "SHA-256", "reading": "reading"}
        return {shown: getattr(doc.origin, name) for name, shown in names.items()}
    images = ""
    if doc.num_train is not None and doc.num_test is not None:
        images = f"{doc.num_train:,} for training, {doc.num_test:,} for testing"
    facts = {
        "hardware": ", ".join(doc.hardware),
        "CPU threads per trial": doc.threads,
        "precision": ", ".join(doc.precision),
        "torch": ", ".join(doc.torch),
        "code": ", ".join(doc.commits) + (" (with uncommitted changes)" if doc.dirty else ""),
        "data": doc.data,
        "data hash (SHA-256)": doc.data_hash,
        "images": images,
        "last trial": doc.date,
        "reference": doc.reference.source if doc.reference else "",
    }
    return {name: value for name, value in facts.items() if value}
