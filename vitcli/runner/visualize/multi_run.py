"""Several runs, each into a folder of its own, on one page."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vitcli.runner.errors import ConfigError, UserError
from vitcli.runner.files import commit
from vitcli.runner.run.folder import RunDir
from vitcli.runner.visualize.page import html
from vitcli.runner.visualize.render import Visualized, visualize
from vitcli.runner.visualize.run_on_test_set import RunOnTestSet

PAGE = "index.html"


def visualize_runs(
    runs: Sequence[RunDir],
    names: Sequence[str],
    output: Path,
    form: str,
    *,
    load: Callable[[RunDir], RunOnTestSet],
    on_figure: Callable[[str, str], None],
    on_failure: Callable[[UserError], None],
) -> tuple[list[Visualized], list[UserError]]:
    """Draw each run's figures below ``output``, and ``index.html`` about all that could be drawn.

    A run that cannot be read does not keep the others back; the only one raises.

    Raises:
        ConfigError: ``output`` is no folder.
    """
    if output.exists() and not output.is_dir():
        raise ConfigError(f"-o {output}: not a folder")
    done: list[Visualized] = []
    failed: list[UserError] = []
    taken: set[str] = set()
    for run in runs:
        try:
            subject = load(run)
            folder = output / free(subject.slug, taken)
            done.append(visualize(subject, names, folder, form, on_figure))
        except UserError as error:
            if len(runs) == 1:
                raise
            on_failure(error)
            failed.append(error)
    if done:
        commit(output / PAGE, html(done))
    return done, failed


def free(name: str, taken: set[str]) -> str:
    """A folder's name that no other run of this call has: ``x``, ``x-2``, ..."""
    number, chosen = 1, name
    while chosen in taken:
        number += 1
        chosen = f"{name}-{number}"
    taken.add(chosen)
    return chosen
