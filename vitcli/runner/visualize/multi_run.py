"""The figures of several runs: a folder for each run, and one page for all.

The page is one file. It needs no network and runs only the explorer's script.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.figure_style import STYLE
from vitcli.runner.files import commit, require_replaceable
from vitcli.runner.report import pages
from vitcli.runner.run.folder import RunDir
from vitcli.runner.visualize.explorer.page import fragment
from vitcli.runner.visualize.render import VisualizedRun, visualize
from vitcli.runner.visualize.tables import tables_of

PAGE = "index.html"
TITLE = b": figures of the model</title>"


def visualize_runs(
    runs: Sequence[RunDir],
    names: Sequence[str],
    output: Path,
    form: str,
    *,
    load: Callable[[RunDir], TrainedRun],
    on_figure: Callable[[str, str], None],
    on_failure: Callable[[UserError], None],
) -> tuple[list[VisualizedRun], list[UserError]]:
    """Draw the figures of each run below ``output``, and write one ``index.html`` about all runs.

    A run that cannot be read is reported, and the other runs are drawn. If it is the only run, its
    error is raised.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"-o {output}: not a folder")
    require_replaceable(output / PAGE, lambda content: TITLE in content, "page of figures")
    done: list[VisualizedRun] = []
    failed: list[UserError] = []
    taken: set[str] = set()
    for run in runs:
        try:
            tested = load(run)
            if not len(tested.data.test):
                raise InputError(f"{tested.spec.data.name} has no test images")
            folder = output / unused_name(tested.slug, taken)
            done.append(visualize(tested, names, folder, form, on_figure))
        except UserError as error:
            if len(runs) == 1:
                raise
            on_failure(error)
            failed.append(error)
    if done:
        commit(output / PAGE, html(done))
    return done, failed


def unused_name(name: str, taken: set[str]) -> str:
    """Return the name, or ``name-2`` and so on if it is taken, and add it to the taken names."""
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    taken.add(chosen)
    return chosen


def html(done: Sequence[VisualizedRun]) -> bytes:
    """Return the page. It embeds the figures as PNG, also if their files are SVG or PDF."""
    sections = [_section(each) for each in done]
    explorers = [each["explorer"] for each in sections if each["explorer"]]
    code = explorers[0] if explorers else None
    return pages.render("figures.html", sections=sections, code=code).encode()


def _section(each: VisualizedRun) -> dict[str, Any]:
    headline, score = each.tested.spec.task.row.headline, each.tested.recorded_score
    return {
        "name": each.tested.name,
        "data": each.numbers["data"],
        "score": "" if score is None else f"{headline.label} {headline.text(score)}",
        "num_test": each.tested.num_scored,
        "figures": [
            {
                "name": name,
                "title": figure.title,
                "caption": figure.caption,
                "details": figure.details,
                "source": pages.data_uri("png", each.pngs[name]),
                "width": shown_width(each.pngs[name]),
                "tables": tables_of(name, figure.numbers or {}),
            }
            for name, figure in each.figures.items()
        ],
        "num_scenes": len(each.scenes),
        "explorer": fragment(each.scenes) if each.scenes else None,
        "skipped": each.skipped,
    }


def shown_width(png: bytes) -> int:
    """Return the width of a figure in CSS pixels, 96 per inch, at which its text can be read."""
    with Image.open(io.BytesIO(png)) as picture:
        return round(96 * picture.width / STYLE["savefig.dpi"])
