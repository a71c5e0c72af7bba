"""Draw the figures of runs, each into a folder, and write one page about all of them.

The page is one file. It needs no network and runs only the scripts of interactive figures.
"""

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from vitcli.core.nn.attention import NoMapError
from vitcli.plugin import Registry, missing_for
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.evaluate.trained_run import NoFigureError, TrainedRun
from vitcli.runner.figure_style import STYLE, encode
from vitcli.runner.files import (
    commit,
    commit_json,
    free_name,
    make_output_folder,
    policy_hash,
    readable_json,
    require_replaceable,
    sha256,
)
from vitcli.runner.machine.device import environment
from vitcli.runner.report import pages
from vitcli.runner.report.tables import Table
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import did_you_mean, portable
from vitcli.runner.visualize.attention_figures import heads_figure, mistakes_figure
from vitcli.runner.visualize.figure import FigureRow, InteractiveFigure, RunFigure
from vitcli.runner.visualize.lens_figure import lens_figure
from vitcli.runner.visualize.picture_figures import picture_figures
from vitcli.runner.visualize.training_figures import confusion_figure, curves_figure
from vitcli.version import __version__

FIGURES = Registry[FigureRow]("figure")
FIGURES |= {
    "curves": FigureRow(make=curves_figure),
    "confusion": FigureRow(make=confusion_figure),
    "mistakes": FigureRow(make=mistakes_figure),
    "heads": FigureRow(make=heads_figure),
    "logit-lens": FigureRow(make=lens_figure),
}
INTERACTIVE = Registry[Callable[[TrainedRun], InteractiveFigure]]("interactive figure")
NUMBERS = "numbers.json"
COMMAND = rb'"command": "vitcli visualize '
PAGE = "index.html"
TITLE = b": figures of the model</title>"
PICTURES = "pictures"
"""The name of all pictures of the run's task. Each of them is a figure with a name of its own."""


@dataclass
class VisualizedRun:
    tested: TrainedRun
    figures: dict[str, RunFigure] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    pngs: dict[str, bytes] = field(default_factory=dict)
    """The figures as PNG, also if their files are SVG or PDF."""
    interactive: dict[str, InteractiveFigure] = field(default_factory=dict)


def check_names(names: Sequence[str]) -> list[str]:
    known = [*FIGURES, PICTURES, *INTERACTIVE]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            missing = missing_for(FIGURES.field, name) or missing_for(INTERACTIVE.field, name)
            why = missing or f"no such figure{hint} (figures: {', '.join(known)})"
            raise ConfigError(f"--what {name}: {why}")
    return [name for name in known if name in names or not names]


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
    """Draw the figures of each readable run below ``output``, and write one page about all runs."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"-o {output}: not a folder")
    require_replaceable(output / PAGE, "page of figures", TITLE)
    done: list[VisualizedRun] = []
    failed: list[UserError] = []
    folders: set[Path] = set()
    for run in runs:
        try:
            tested = load(run)
            if not len(tested.data.test):
                raise InputError(f"{tested.spec.data.name} has no test images")
            folder, number = output / tested.slug, 1
            while folder in folders:
                number += 1
                folder = output / f"{tested.slug}-{number}"
            folders.add(folder)
            done.append(visualize(tested, names, folder, form, on_figure))
        except UserError as error:
            if len(runs) == 1:
                raise
            on_failure(error)
            failed.append(error)
    if done:
        commit(output / PAGE, html(done, failed))
    return done, failed


def visualize(
    tested: TrainedRun,
    names: Sequence[str],
    folder: Path,
    form: str = "png",
    on_figure: Callable[[str, str], None] = lambda name, outcome: None,
) -> VisualizedRun:
    """Draw figures into ``folder``; tell ``on_figure`` each, or why there is none."""
    make_output_folder(folder)
    numbers = folder / NUMBERS
    require_replaceable(numbers, "list of numbers", COMMAND)
    for path in () if numbers.exists() else sorted(folder.iterdir()):
        if path.suffix in (f".{form}", ".html"):
            raise ConfigError(f"{path}: vitcli did not write this file; choose another folder")
    drawn = VisualizedRun(tested, files={"numbers": numbers}, numbers=describe_run(tested, names))
    listed = readable_json(numbers).get("written")
    before: dict[str, str] = listed if isinstance(listed, dict) else {}
    written = dict(before)
    # From here on, the figures in the folder are vitcli's.
    commit_json(numbers, drawn.numbers | {"written": written})

    def write(name: str, suffix: str, content: bytes) -> None:
        path = drawn.files[name] = folder / f"{name}.{suffix}"
        known = before.get(path.name), sha256(content)
        if before and path.is_file() and sha256(path.read_bytes()) not in known:
            kept = path.rename(free_name(path, "old"))
            on_figure(name, f"another file was there, kept as {kept.name}")
        written[path.name] = known[1]
        commit(path, content)
        on_figure(name, "drawn")

    for asked in names:
        row = FIGURES.get(asked)
        if row and row.slow:
            on_figure(asked, row.slow)
        try:
            if asked in INTERACTIVE:
                drawn.interactive[asked] = INTERACTIVE[asked](tested)
                write(asked, "html", drawn.interactive[asked].page)
                continue
            made = {asked: row.make(tested)} if row else picture_figures(tested)
            for name, figure in made.items():
                content = encode(figure.draw, form)
                drawn.figures[name] = figure
                drawn.pngs[name] = content if form == "png" else encode(figure.draw, "png")
                write(name, form, content)
        except (NoFigureError, NoMapError) as error:
            drawn.skipped[asked] = str(error)
            on_figure(asked, f"none: {error}")
    drawn.numbers |= {name: found.numbers for name, found in drawn.figures.items() if found.numbers}
    commit_json(numbers, drawn.numbers | {"written": written})
    return drawn


def describe_run(tested: TrainedRun, names: Sequence[str]) -> dict[str, Any]:
    command = ["vitcli", "visualize", portable(tested.run.name)]
    command += ["--num-images", str(tested.num_images)]
    if [*names] != check_names([]):
        command += ["--what", ",".join(names)]
    machine = environment(tested.device)
    return {
        "run": tested.name,
        "experiment": tested.record.experiment,
        "data": portable(tested.spec.data.name),
        "data_hash": tested.data.data_hash,
        f"test_{tested.spec.task.row.headline.name}": tested.recorded_score,
        "command": shlex.join(command),
        "vitcli": __version__,
        **{key: machine.get(key) for key in ("commit", "torch", "hardware")},
    }


def tables_of(figure: str, numbers: Mapping[str, Any]) -> Sequence[Table]:
    return FIGURES[figure].tables(numbers) if figure in FIGURES else ()


def html(done: Sequence[VisualizedRun], failed: Sequence[UserError] = ()) -> bytes:
    sections = [_section(drawn) for drawn in done]
    figures = [figure for drawn in done for figure in drawn.interactive.values()]
    codes = {policy_hash(figure.script): figure for figure in figures}
    page = pages.render("figures.html", sections=sections, codes=codes, failed=failed)
    return page.encode()


def _section(drawn: VisualizedRun) -> dict[str, Any]:
    headline, score = drawn.tested.spec.task.row.headline, drawn.tested.recorded_score
    return {
        "name": drawn.tested.name,
        "data": drawn.numbers["data"],
        "score": "" if score is None else f"{headline.label} {headline.text(score)}",
        "num_test": drawn.tested.num_scored,
        "figures": [
            {
                "name": name,
                "title": figure.title,
                "caption": figure.caption,
                "details": figure.details,
                "source": pages.data_uri("png", drawn.pngs[name]),
                "width": _width(drawn.pngs[name]),
                "tables": tables_of(name, figure.numbers),
            }
            for name, figure in drawn.figures.items()
        ],
        "interactive": drawn.interactive,
        "skipped": drawn.skipped,
    }


def _width(png: bytes) -> int:
    """Return the width of a figure in CSS pixels, 96 per inch, at which its text can be read."""
    with Image.open(io.BytesIO(png)) as picture:
        return round(96 * picture.width / STYLE["savefig.dpi"])
