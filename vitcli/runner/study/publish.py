"""The files of a study's results: the document, the tables, the figures and the page."""

from pathlib import Path

from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import ConfigError
from vitcli.runner.files import commit, make_output_folder
from vitcli.runner.study.result import FIGURE_FORMATS, StudyResult
from vitcli.runner.study.table import render

FILES = {"results.json": "json", "table.md": "md", "table.tex": "latex", "table.csv": "csv"}


def publish_outside(doc: StudyResult, folder: Path) -> list[Path]:
    """Write the files of results that vitcli did not train; never into the folder of a study.

    Raises:
        UserError: The folder is that of a study, or cannot be written to.
    """
    if (folder / PLAN).exists():
        raise ConfigError(f"-o {folder}: the folder of a study; choose another folder")
    make_output_folder(folder)
    return publish(doc, folder)


def publish(doc: StudyResult, root: Path) -> list[Path]:
    """Write the document and everything made from it; return the paths.

    Write nothing if all files exist and the document has not changed.
    """
    results = root / "results.json"
    content = {name: f"{render(doc, form)}\n".encode() for name, form in FILES.items()}
    figures = [f"figures/{name}.{form}" for name in doc.figures for form in FIGURE_FORMATS]
    is_complete = all((root / name).is_file() for name in [*content, *figures, "report.html"])
    if is_complete and results.read_bytes() == content["results.json"]:
        return []
    from vitcli.runner.study.page import write_report  # matplotlib takes a second

    written = write_report(doc, root)
    for name in ("table.md", "table.tex", "table.csv", "results.json"):
        commit(root / name, content[name])  # the document comes last and marks all as written
    return [*written, *(root / name for name in content)]
