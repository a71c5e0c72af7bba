"""Shell completion of experiments, runs, data sets and fields; Typer chooses those that fit.

It imports no torch.
"""

from collections import Counter
from contextlib import suppress

import typer

from vitcli.runner.errors import ConfigError


def any_experiment() -> list[str]:
    from vitcli.runner.experiment.config import experiment_files

    return [*experiment_files()]


def experiment(incomplete: str) -> list[str]:
    return of_kind(incomplete, "experiment")


def study(incomplete: str) -> list[str]:
    return of_kind(incomplete, "study")


def of_kind(incomplete: str, kind: str) -> list[str]:
    from vitcli.runner.experiment.config import experiment_files
    from vitcli.runner.experiment.listing import name_of_kind

    names = []
    for name, path in experiment_files().items():
        with suppress(ConfigError):
            if name.startswith(incomplete) and name_of_kind(path) == kind:
                names.append(name)
    return names


def run(incomplete: str) -> list[str]:
    from vitcli.runner.run.folder import bundled_models

    return [*own_run(incomplete), *bundled_models()]


def own_run(incomplete: str) -> list[str]:
    """Return the runs under runs/. A run that is alone in its folder is named by the folder."""
    from vitcli.runner.run.folder import list_runs

    names = [run.name for run in list_runs()]
    count = Counter(name.partition("/")[0] for name in names)
    shown = []
    for name in names:
        folder = name.partition("/")[0]
        text = folder if count[folder] == 1 and "/" not in incomplete else name
        # A shell would split a name at its spaces, and obey control characters.
        if " " not in text and text.isprintable():
            shown.append(text)
    return shown


def data_set() -> list[str]:
    from vitcli.core.spec import DATA_SETS

    return [*DATA_SETS]


def field(ctx: typer.Context) -> list[str]:
    from vitcli.runner.experiment.config import flatten, load_experiment

    # Without a value for its last option, the line is not parsed to its end.
    name = ctx.params.get("experiment") or next(iter(ctx.args), "quickstart")
    try:
        spec = load_experiment(name).spec
    except ConfigError:
        spec = load_experiment("quickstart").spec
    return [f"{name}=" for name in flatten(spec.model_dump(mode="json"))]
