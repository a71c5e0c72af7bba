"""Shell completion of the names of experiments, runs, data sets and fields. It imports no torch."""

from collections import Counter

import typer

from vitcli.runner.errors import ConfigError


def any_experiment(incomplete: str) -> list[str]:
    from vitcli.runner.experiment.config import experiment_files

    return [name for name in experiment_files() if name.startswith(incomplete)]


def experiment(incomplete: str) -> list[str]:
    return of_kind(incomplete, "experiment")


def study(incomplete: str) -> list[str]:
    return of_kind(incomplete, "study")


def of_kind(incomplete: str, kind: str) -> list[str]:
    from vitcli.runner.experiment.config import experiment_files
    from vitcli.runner.experiment.listing import name_of_kind

    names = []
    for name, path in experiment_files().items():
        try:
            if name.startswith(incomplete) and name_of_kind(path) == kind:
                names.append(name)
        except ConfigError:
            continue
    return names


def run(incomplete: str) -> list[str]:
    from vitcli.runner.run.folder import bundled_models

    return own_run(incomplete) + [name for name in bundled_models() if name.startswith(incomplete)]


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
        if text.startswith(incomplete) and " " not in text and text.isprintable():
            shown.append(text)
    return shown


def data_set(incomplete: str) -> list[str]:
    from vitcli.core.spec import DATA_SETS

    return [name for name in DATA_SETS if name.startswith(incomplete)]


def field(ctx: typer.Context, incomplete: str) -> list[str]:
    from vitcli.runner.experiment.config import flatten, load_experiment

    # Without a value for its last option, the line is not parsed to its end.
    name = ctx.params.get("experiment") or next(iter(ctx.args), "quickstart")
    try:
        spec = load_experiment(name).spec
    except ConfigError:
        spec = load_experiment("quickstart").spec
    fields = flatten(spec.model_dump(mode="json"))
    return [f"{name}=" for name in fields if name.startswith(incomplete)]
