"""The notebooks of the tutorials: the cell that installs on Colab, their minutes, and the notebook
that is made from docs/tutorials/first-model.md.
"""

import json
import re
from typing import Any

from study_tables import RESULTS, ROOT

from vitcli.runner.report.tables import markdown_grid

TUTORIALS = ROOT / "docs" / "tutorials"
PAGE = TUTORIALS / "first-model.md"
COURSE, FIRST_MODEL = TUTORIALS / "course.ipynb", PAGE.with_suffix(".ipynb")
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
STAYS_TEXT = re.compile("pip install|train cifar10")
"""In blocks that are no cells: the first cell installs, and CIFAR-10 is downloaded on purpose."""
ABOUT = """\
This notebook is made from [the tutorial](first-model.md), which you can also type in a terminal. A
line that begins with `!` is a command of the terminal. Where the text says Ctrl-C, press the stop
button of the notebook.
"""
FIRST_CELL = """\
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = "{repository}"  # a public address of vitcli, which Colab installs from
if "google.colab" in sys.modules and not Path("zensical.toml").exists():
    if not REPOSITORY:
        raise SystemExit("REPOSITORY is empty: write the address of vitcli's repository there")
    subprocess.run(["git", "clone", "-q", "--depth", "1", REPOSITORY, "vitcli"], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "./vitcli"], check=True)
    os.chdir("vitcli")
places = [Path.cwd(), *Path.cwd().parents]
os.chdir(next((place for place in places if (place / "zensical.toml").exists()), places[0]))
"""
"""Elsewhere than on Colab, it only goes to the root of the repository, and says nothing."""


def repository() -> str:
    """Return the address of the repository, ``repo_url`` in zensical.toml, or nothing."""
    found = re.search(r'^repo_url = "(.*)"', (ROOT / "zensical.toml").read_text(), re.MULTILINE)
    return found[1].rstrip("/") if found else ""


def colab(name: str) -> str:
    """Return the badge that opens a notebook on Colab, or which setting lacks for it."""
    address = repository().removeprefix("https://github.com/")
    if not address:
        return (
            "*Open in Colab: this copy has no public address. Write it into `repo_url` in"
            " `zensical.toml`, and type `python .ci/docs.py`.*"
        )
    site = "https://colab.research.google.com"
    place = f"{site}/github/{address}/blob/main/docs/tutorials/{name}.ipynb"
    return f"[![Open in Colab]({site}/assets/colab-badge.svg)]({place})"


def minutes(*names: str) -> str:
    """Return the measured minutes of each section of notebooks, with a column for each machine."""
    documents = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("minutes-*.json"))]
    measured = [
        (f"{doc['hardware']}{', `QUICK`' * ('quick' in name)}", doc["seconds"][name])
        for doc in documents
        for name in names
        if name in doc["seconds"]
    ]
    if not measured:
        return "The minutes of computing were not measured yet: `python experiments/minutes.py`."
    sections = list(dict.fromkeys(name for _, seconds in measured for name in seconds))
    rows = [
        [name, *(minute_text(seconds.get(name)) for _, seconds in measured)] for name in sections
    ]
    total = [minute_text(sum(seconds.values())) for _, seconds in measured]
    made = "; ".join(
        f"{doc['hardware']}: torch {doc['torch']}, {doc['date']}, commit {doc['commit'][:9]}"
        f"{', on a CPU that was not idle at the beginning' if doc['busy'] else ''}"
        for doc in documents
    )
    table = markdown_grid(
        ["minutes of computing", *(name for name, _ in measured)], [*rows, ["all", *total]]
    )
    return f"{table}\n\nMeasured by `python experiments/minutes.py`. {made}."


def minute_text(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds / 60:.1f}"


def filled_course(text: str, fill: Any) -> str:
    """Return the notebook of the course with its generated parts."""
    notebook = json.loads(text)
    tables = {"course-colab": colab("course"), "course-minutes": minutes("course", "course-quick")}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["id"] == "colab":
            source = first_cell()
        elif cell["cell_type"] == "markdown":
            source = fill(source + "\n", tables).removesuffix("\n")
        cell["source"] = source.splitlines(keepends=True)
    return dump(notebook["cells"])


def first_cell() -> str:
    return FIRST_CELL.format(repository=repository()).removesuffix("\n")


def first_model(page: str) -> str:
    """Return the notebook of the tutorial: each block of commands, or a file, is a cell."""
    title, rest = page.split("\n", 1)
    cells = [markdown(f"{title}\n\n{ABOUT}"), code(first_cell())]
    text = ""
    for i, part in enumerate(BLOCK.split(rest)):
        if i % 3 == 1:
            language = part
        elif i % 3 == 0:
            text += part
        elif STAYS_TEXT.search(part):
            text += f"```bash\n{part}```\n"
        else:
            cells += [markdown(text)] if text.strip() else []
            cells += [command(language, part)]
            text = ""
    cells = [*cells, markdown(text)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return dump(cells)


def command(language: str, block: str) -> dict[str, Any]:
    if language == "python":
        name = block.split("\n")[0].removeprefix("# ")
        return code(f"%%writefile {name}\n{block}")
    if block.startswith("tensorboard"):
        return code(f"%load_ext tensorboard\n%{block}", "skip-execution")
    return code("\n".join(f"!{line}" for line in block.splitlines()))


def markdown(text: str) -> dict[str, Any]:
    source = text.strip().splitlines(keepends=True)
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": source}


def code(text: str, *tags: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": "",
        "metadata": {"tags": [*tags]} if tags else {},
        "outputs": [],
        "source": text.strip().splitlines(keepends=True),
    }


def dump(cells: list[dict[str, Any]]) -> str:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
