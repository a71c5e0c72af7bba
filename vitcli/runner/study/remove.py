"""Removal of runs and of whole studies."""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitcli.runner.engines.drivers import LOGS, PLAN, no_drivers
from vitcli.runner.engines.engine import ENGINES
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.experiment.kinds import FILE_KINDS
from vitcli.runner.files import link_before, readable_json, sha256, temporary_files_of
from vitcli.runner.run import listing
from vitcli.runner.run.folder import RUNS, RunDir, find_run, list_runs
from vitcli.runner.study.definition import RESERVED
from vitcli.runner.study.result import FIGURE_FORMATS, FIGURES
from vitcli.runner.text import quantity


@dataclass(frozen=True, kw_only=True)
class Removal:
    """A run or a study to remove. The trials of a study are its runs."""

    name: str
    folder: Path
    runs: tuple[RunDir, ...]
    is_study: bool

    def describe(self) -> str:
        files = (path for path in self.folder.rglob("*") if not path.is_dir())
        size = f"{sum(path.lstat().st_size for path in files) / 1e6:,.1f} MB"
        if not self.is_study:
            return f"{self.name} ({size})"
        return f"study {self.name} ({quantity(len(self.runs), 'trial')}, {size})"


def find_removal(text: str) -> Removal:
    for folder in (Path(text), RUNS / text) if text else ():
        study = RunDir(folder)
        if not study.exists and {"study", "trials"} <= readable_json(folder / PLAN).keys():
            listing.refuse_link(folder)
            trials = tuple(list_runs(folder))
            return Removal(name=study.name, folder=folder, runs=trials, is_study=True)
    run = find_run(text)
    path, top = run.path.resolve(), RUNS.resolve()
    experiments = {folder for folder in path.parents if folder.parent == top}
    named = {Path(text).resolve(), (RUNS / text).resolve()}
    if not run.is_bundled and named.isdisjoint({path, *experiments}):
        raise ConfigError(f"{text} is a folder above a run; name the run: {run.command('runs rm')}")
    return Removal(name=run.name, folder=run.path, runs=(run,), is_study=False)


def remove(removals: Sequence[Removal]) -> list[str]:
    """Remove all given runs and studies, or none; return the files that vitcli did not write."""
    studies = {removal.folder.resolve() for removal in removals if removal.is_study}
    with contextlib.ExitStack() as held:
        for folder in studies:
            held.enter_context(no_drivers(folder))
        left = listing.remove_runs([run for removal in removals for run in removal.runs])
        for folder in studies:
            left += _remove_study_files(folder)
    for folder in studies:
        if folder.is_dir():
            listing.remove_empty_folders(folder)
    return sorted(set(left))


def _remove_study_files(folder: Path) -> list[str]:
    try:
        trials = readable_json(folder / PLAN).get("trials")
        entries = trials.values() if isinstance(trials, dict) else ()
        configs = [entry.get("config") for entry in entries if isinstance(entry, dict)]
        listing.delete_code_copies(folder, configs)
        for path in _study_files(folder):
            if not (path.is_dir() or link_before(path, folder)):
                path.unlink(missing_ok=True)
        for path in sorted(folder.rglob("*"), reverse=True):  # a folder after what is in it
            if path.is_dir() and not path.is_symlink():
                listing.remove_empty_folders(path)
    except OSError as error:
        raise ResourceError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return listing.foreign_files(folder)


def _study_files(folder: Path) -> list[Path]:
    figures = folder / "figures"
    found = [folder / name for name in RESERVED]
    found += [folder / listing.PAGE] * listing.is_page_of_runs(folder / listing.PAGE)
    found += [figures / f"{name}.{form}" for name in FIGURES for form in FIGURE_FORMATS]
    log_files = re.compile("|".join(engine.logs for engine in ENGINES.values()))
    logs = [path for path in (folder / LOGS).glob("*") if log_files.fullmatch(path.name)]
    plan = readable_json(folder / PLAN)
    found += [folder / name for kind in FILE_KINDS.values() for name in kind.files(plan)]
    temporary = [path for file in found for path in temporary_files_of(file)]
    document = readable_json(folder / "results.json")
    written = document.get("written")
    hashes = written if isinstance(written, dict) else {}
    reports = [p for p in found if p.parent == figures or p.stem in ("report", "table")]
    known = {path: "" for path in reports if hashes or not document}  # vitcli 1.0.0 wrote no hash
    known |= {folder / name: digest for name, digest in hashes.items()}
    there = {path: digest for path, digest in known.items() if path.is_file()}
    changed = {path for path, digest in there.items() if sha256(path.read_bytes()) != digest}
    return [*(path for path in found if path not in changed), *temporary, *logs]
