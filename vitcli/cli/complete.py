"""Shell completion of experiments, runs and data sets; Typer chooses the names that fit.

It imports no torch.
"""


def experiment() -> list[str]:
    from vitcli.runner.experiment.config import experiment_files

    return [*experiment_files()]


def run() -> list[str]:
    from vitcli.runner.run.folder import bundled_models

    return [*own_run(), *bundled_models()]


def own_run() -> list[str]:
    from vitcli.runner.run.folder import list_runs

    # A shell would split a name at its spaces, and obey control characters.
    return [run.name for run in list_runs() if " " not in run.name and run.name.isprintable()]


def data_set() -> list[str]:
    from vitcli.core.spec import DATA_SETS

    return [*DATA_SETS]
