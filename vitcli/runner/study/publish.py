"""Write what a study has found: the document, the table for a paper, figures and one page."""

from pathlib import Path

from vitcli.runner.files import commit
from vitcli.runner.study.result import StudyResult
from vitcli.runner.study.table import render

FILES = {"results.json": "json", "table.md": "md", "table.tex": "latex", "table.csv": "csv"}


def publish(doc: StudyResult, root: Path) -> list[Path]:
    """Write everything that is made of the document; nothing where it is there already."""
    results = root / "results.json"
    content = {name: f"{render(doc, form)}\n".encode() for name, form in FILES.items()}
    from vitcli.runner.study.page import write_report, written_files

    there = all((root / name).is_file() for name in [*content, *written_files()])
    if there and results.read_bytes() == content["results.json"]:
        return []

    written = write_report(doc, root)
    for name in ("table.md", "table.tex", "table.csv", "results.json"):
        commit(root / name, content[name])  # the document last: it says that all is written
    return [*written, *(root / name for name in content)]
