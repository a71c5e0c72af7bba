"""The figures of several runs: a folder for each run, and one page for all."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.evaluate.trained_run import TrainedRun
from vitcli.runner.files import commit, require_replaceable
from vitcli.runner.run.folder import RunDir
from vitcli.runner.visualize.page import html
from vitcli.runner.visualize.render import VisualizedRun, visualize

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
