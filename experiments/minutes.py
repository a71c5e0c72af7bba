"""Run the notebooks of the course and of the first tutorial; write the minutes of each section.

The result, experiments/results/minutes-NAME.json, says how long the computer needs. NAME is the
kind of machine. `python .ci/docs.py` then writes the minutes into the notebooks. An idle laptop
with two cores, and the same with one thread:

    python experiments/minutes.py avx2
    OMP_NUM_THREADS=1 taskset -c 0 python experiments/minutes.py avx2-one-thread
"""

import argparse
import json
import os
import re
import tempfile
import time
from datetime import date, datetime
from pathlib import Path
from typing import Any

import torch

from vitcli.runner.machine.device import cpu_name, source_commit

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
SECTION = re.compile(r"^## (\d+\. .+)$", re.MULTILINE)
CALM_SECONDS = 180
"""Longest wait for other programs to end."""
QUICK = ("QUICK = False", "QUICK = True")
NOTEBOOKS = {
    "course": ("course", ()),
    "course-quick": ("course", [QUICK]),
    "first-model": ("first-model", ()),
}
"""Name in the result -> notebook, and texts to replace in it."""


def execute(name: str, changes: Any, folder: Path, **options: Any) -> Any:
    """Return a notebook after all its cells ran in a folder.

    ``changes`` are pairs of texts to replace. A cell fails if a command in it does.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(TUTORIALS / f"{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        for old, new in changes if cell.cell_type == "code" else ():
            cell.source = cell.source.replace(old, new)
        if cell.source.startswith("!"):
            cell.source = cell.source.replace("\n!", "\nassert not _exit_code\n!")
            cell.source += "\nassert not _exit_code"
    client = NotebookClient(notebook, timeout=None, record_timing=True, **options)
    client.execute(cwd=str(folder))
    return notebook


def seconds_of_sections(notebook: Any) -> dict[str, float]:
    """Return the title of each section that computes -> seconds."""
    seconds: dict[str, float] = {}
    section = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            section = (SECTION.findall(cell.source) or [section])[-1]
        elif section and (times := cell.metadata.get("execution")):
            start, end = (
                datetime.fromisoformat(times[name])
                for name in ("iopub.execute_input", "shell.execute_reply")
            )
            seconds[section] = seconds.get(section, 0.0) + (end - start).total_seconds()
    return {name: round(value, 1) for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("machine", help="kind of machine, a part of the file name")
    parser.add_argument("--only", choices=NOTEBOOKS, nargs="+", default=[*NOTEBOOKS])
    asked = parser.parse_args()
    for _ in range(CALM_SECONDS):  # after another run of this script, for one
        if not (busy := os.getloadavg()[0] > 1):
            break
        time.sleep(1)
    commit, dirty = source_commit()
    seconds = {}
    for name in asked.only:
        notebook, changes = NOTEBOOKS[name]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "zensical.toml").touch()
            (Path(folder) / "experiments").symlink_to(ROOT / "experiments")
            seconds[name] = seconds_of_sections(execute(notebook, changes, Path(folder)))
    threads = torch.get_num_threads()
    document = {
        "command": f"python experiments/minutes.py {asked.machine}",
        "commit": commit,
        "dirty": dirty,
        "date": str(date.today()),
        "hardware": f"{cpu_name()}, {threads} thread{'s' * (threads > 1)}",
        "torch": torch.__version__,
        "busy": busy,
        "seconds": seconds,
    }
    output = ROOT / "experiments" / "results" / f"minutes-{asked.machine}.json"
    output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
