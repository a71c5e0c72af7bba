"""Which runs `vitcli runs watch` shows. No torch."""

from pathlib import Path

from vitcli.runner.errors import InputError
from vitcli.runner.overview.progress import read_study
from vitcli.runner.run.folder import RUNS, list_runs


def find_watched(name: str | None) -> Path:
    """Return a folder of runs by path or name under runs/; without a name, that changed last."""
    if name is None:
        runs = list_runs(RUNS)
        if not runs:
            raise InputError("no runs yet; start with: vitcli train")
        newest = runs[-1].path
        return next((path for path in newest.parents if read_study(path)), newest)
    for folder in (Path(name), RUNS / name) if name else ():
        if folder.is_dir() and (read_study(folder) or list_runs(folder)):
            return folder
    raise InputError(
        f"no study or run under runs/ is called {name!r}; 'vitcli runs ls' lists them, and"
        " 'vitcli ablate STUDY' starts a study"
    )
