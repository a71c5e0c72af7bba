"""The files of a study's results: the document, the tables, the figures and the page.

The page has table, figures and configurations in one HTML file. It is inert: it has no script,
loads nothing from the network, and its content-security policy forbids both. Names are escaped.
"""

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from markupsafe import Markup

from vitcli.core.metric import Metric
from vitcli.core.spec.task import TASKS
from vitcli.runner import files
from vitcli.runner.data.catalogue import CATALOGUE
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.report import pages
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.result import FIGURE_FORMATS, FIGURES, Candidate, StudyResult
from vitcli.runner.study.table import read_document, render
from vitcli.runner.text import Listener, capitalize, ignore_message, setting_text

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
    contents = _contents(doc, folder)
    if (folder / RESULTS).exists():
        before = read_document(files.read_bounded(folder / RESULTS, files.MAX_JSON).decode())
        _refuse_other_source(folder, before, doc)
        _refuse_changed_files(folder, before, contents)
    files.make_output_folder(folder)
    _write(contents)
    return _files(folder, doc.figures)


def _refuse_other_source(folder: Path, before: StudyResult, doc: StudyResult) -> None:
    old, new = before.origin, doc.origin
    is_same = (old.file if old else before.name) == (new.file if new else doc.name)
    if is_same and old and new and old.sha256 != new.sha256:
        is_same = _finished_scores(before) <= _finished_scores(doc)
    if not is_same:
        problem = f"has results of {old.file if old else before.name} that are not in this source"
        raise ConfigError(f"{folder / RESULTS}: {problem}; choose another folder")


def _finished_scores(doc: StudyResult) -> Counter[tuple[str, float | None]]:
    """Count the scores of each variant; a seed that is a name has another number in each file."""
    return Counter(
        (row.variant, trial.number(f"test_{doc.headline.name}"))
        for row in doc.rows
        for trial in row.trials
        if trial.state == "finished"
    )


def _refuse_changed_files(folder: Path, before: StudyResult, contents: dict[Path, bytes]) -> None:
    """Refuse a folder with a file that neither ``before`` nor a killed call has written."""
    known = {path: files.sha256(content) for path, content in _texts(before, folder).items()}
    known |= {folder / name: digest for name, digest in before.written.items()}
    if not before.written:  # by a version before 1.1.0, so nobody knows what the page was
        known[folder / "report.html"] = ""
    for path, digest in known.items():
        allowed = (digest, files.sha256(contents.get(path, b"")))
        if path.exists() and files.sha256(path.read_bytes()) not in allowed:
            problem = "changed by a person or another version of vitcli"
            raise ConfigError(f"{path}: {problem}; move it away or choose another folder")


def refuse_foreign_files(folder: Path, figures: Iterable[str] = tuple(FIGURES)) -> None:
    """Refuse a folder in which ``publish`` would replace files that vitcli did not write.

    A document alone proves nothing: a person may have saved what ``--json`` prints.
    """
    plan = files.readable_json(folder / PLAN)
    is_damaged = not plan and any(folder.glob("*/*/config.yaml"))
    if (folder / PLAN).exists() and (is_damaged or {"study", "trials"} <= plan.keys()):
        return
    places = (folder / PLAN, *_files(folder, figures))
    there = [path for path in places if os.path.lexists(path)]
    try:
        if there:
            read_document(files.read_bounded(folder / RESULTS, files.MAX_JSON).decode())
            if TITLE not in files.read_bounded(folder / "report.html", files.MAX_JSON):
                raise ValueError("a page of another program")
    except (OSError, ValueError, UserError) as error:
        problem = "vitcli did not write this file; choose another folder"
        raise ConfigError(f"{there[0]}: {problem}") from error


def _files(folder: Path, figures: Iterable[str]) -> list[Path]:
    names = (f"figures/{name}.{form}" for name in figures for form in FIGURE_FORMATS)
    return [folder / name for name in (*reversed(FILES), "report.html", *names)]


def publish(doc: StudyResult, root: Path, on_message: Listener = ignore_message) -> list[Path]:
    """Write all files below ``root``, unless they exist with the same document; return them.

    A file that a person has changed, or has put there before, is kept beside the new one.
    """
    expected = _files(root, doc.figures)
    before: StudyResult | None = None
    with suppress(OSError, ValueError, UserError):
        before = read_document(files.read_bounded(root / RESULTS, files.MAX_JSON).decode())
    is_same = before and render(before.replace(written={}), "json") == render(doc, "json")
    if is_same and all(path.is_file() for path in expected):
        return expected
    contents = _contents(doc, root)
    written = before.written if before else {}
    has_hashes = bool(written) or not before  # vitcli 1.0.0 wrote none
    for path in expected if has_hashes else ():
        known = (written.get(path.relative_to(root).as_posix()), files.sha256(contents[path]))
        is_there = path.is_file() and path.name != RESULTS
        if is_there and files.sha256(path.read_bytes()) not in known:
            kept = path.rename(files.free_name(path, "old"))
            on_message(f"note: {path} was not written with the last report; kept as {kept.name}")
    _write(contents)
    return expected


def _write(contents: dict[Path, bytes]) -> None:
    for path, content in contents.items():
        files.make_folder(path.parent)
        files.commit(path, content)


def _contents(doc: StudyResult, root: Path) -> dict[Path, bytes]:
    """Return each file; the document comes last, marks all as written and has their hashes."""
    from vitcli.runner.figure_style import encode_figures  # matplotlib takes a second
    from vitcli.runner.study.figures import figures_of

    figures = encode_figures(figures_of(doc))
    contents = {root / "figures" / name: content for name, content in figures.items()}
    contents |= {root / "report.html": html(doc, figures).encode()} | _texts(doc, root)
    del contents[root / RESULTS]
    written = {path.relative_to(root).as_posix(): files.sha256(x) for path, x in contents.items()}
    return contents | _texts(doc.replace(written=written), root)


def _texts(doc: StudyResult, root: Path) -> dict[Path, bytes]:
    return {root / name: f"{render(doc, form)}\n".encode() for name, form in FILES.items()}


def html(doc: StudyResult, figures: dict[str, bytes]) -> str:
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
    )


def _score(headline: Metric, numbers: RunRecord | Candidate, split: str) -> str:
    value = numbers.number(f"{split}_{headline.name}")
    return "" if value is None else f"{headline.scale * value:.{headline.digits}f}"
