"""Draw a run's figures into a folder, and collect them on one page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.runner.errors import ConfigError
from vitcli.runner.experiment.config import did_you_mean
from vitcli.runner.figure_style import encode
from vitcli.runner.files import commit, commit_json
from vitcli.runner.machine.device import environment
from vitcli.runner.text import portable
from vitcli.runner.visualize.explorer.page import page
from vitcli.runner.visualize.explorer.scene import Scene
from vitcli.runner.visualize.explorer_page import scenes
from vitcli.runner.visualize.figure import RunFigure
from vitcli.runner.visualize.figures import FIGURES
from vitcli.runner.visualize.run_on_test_set import NoFigureError, RunOnTestSet
from vitcli.version import __version__

NUMBERS = "numbers.json"
EXPLORER = "explorer"
"""The name of what is no figure but a page."""


@dataclass(frozen=True, kw_only=True)
class Visualized:
    """What was drawn of one run."""

    subject: RunOnTestSet
    figures: Mapping[str, RunFigure]
    files: Mapping[str, Path]
    skipped: Mapping[str, str]
    """Figure -> why it has no meaning for this model."""
    numbers: Mapping[str, Any]
    pngs: Mapping[str, bytes]
    """The figures as PNG, whatever their files are."""
    scenes: Sequence[Scene]
    """What the explorer shows; empty where it was not asked for."""


def check_names(names: Sequence[str]) -> list[str]:
    """The figures asked for, in their usual order; all unless some are named.

    Raises:
        ConfigError: There is no such figure.
    """
    known = [*FIGURES, EXPLORER]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"--what {name}: no such figure{hint} (there are {', '.join(known)})")
    return [name for name in known if name in names or not names]


def visualize(
    subject: RunOnTestSet,
    names: Sequence[str],
    folder: Path,
    form: str = "png",
    on_figure: Callable[[str, str], None] = lambda name, outcome: None,
) -> Visualized:
    """Draw figures of one run into ``folder``, with ``numbers.json`` beside them.

    Args:
        names: Some of ``FIGURES``, and ``explorer``.
        form: png, svg or pdf.
        on_figure: Told each figure's name and its file, or why there is none.
    """
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, RunFigure] = {}
    files: dict[str, Path] = {}
    skipped: dict[str, str] = {}
    pngs: dict[str, bytes] = {}
    explored: list[Scene] = []
    for name in names:
        try:
            if name == EXPLORER:
                explored = scenes(subject)
                files[name] = folder / f"{name}.html"
                content = page(explored, about=f"Attention of {subject.name}")
            else:
                figures[name] = FIGURES[name](subject)
                files[name] = folder / f"{name}.{form}"
                content = encode(figures[name].draw, form)
                draw = figures[name].draw
                pngs[name] = content if form == "png" else encode(draw, "png")
        except NoFigureError as error:
            skipped[name] = str(error)
            on_figure(name, f"none: {error}")
            continue
        commit(files[name], content)
        on_figure(name, str(files[name]))
    numbers = about_run(subject) | {n: d.numbers for n, d in figures.items() if d.numbers}
    commit_json(folder / NUMBERS, numbers)
    return Visualized(
        subject=subject,
        figures=figures,
        files=files,
        skipped=skipped,
        numbers=numbers,
        pngs=pngs,
        scenes=explored,
    )


def about_run(subject: RunOnTestSet) -> dict[str, Any]:
    """Which model, which images, which program."""
    meta = subject.run.read("meta.json")
    name = portable(subject.run.name)
    surroundings = environment(subject.predictor.device)
    return {
        "run": subject.name,
        "experiment": meta.get("experiment"),
        "data": portable(subject.predictor.spec.data.name),
        "data_hash": subject.data.data_hash,
        "test_accuracy": subject.recorded_accuracy,
        "command": f"vitcli visualize {name} --num-images {subject.num_images}",
        "vitcli": __version__,
        **{key: surroundings.get(key) for key in ("commit", "torch", "hardware")},
    }
