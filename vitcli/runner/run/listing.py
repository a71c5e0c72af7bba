"""Lists of runs, and the removal of runs."""

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from vitcli.runner.errors import ConfigError, InputError, ResourceError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_text
from vitcli.runner.experiment.diff import Config
from vitcli.runner.experiment.yaml_text import dump, read_mapping
from vitcli.runner.files import link_before
from vitcli.runner.run.compare import differing_fields
from vitcli.runner.run.folder import (
    EVENTS,
    FILES,
    RUNS,
    RunDir,
    delete_step,
    is_effectively_empty,
    list_runs,
    step_folders,
    temporary_files,
)
from vitcli.runner.run.record import RunRecord, read_record

PAGE = "index.html"
"""Name of the page of runs in a folder of runs."""
PAGE_MARK = '<meta name="generator" content="vitcli runs page">'
"""A line by which vitcli recognises a page of runs, which it may replace or remove."""


def list_records(folder: Path | None = None) -> list[RunRecord]:
    """Return every run below a folder with the settings that differ, oldest first.

    If runs have own code of one name and another content, the SHA-256 is a setting.
    """
    references: dict[str, Config] = {}
    records = [read_record(run) for run in list_runs(folder or RUNS)]
    codes = [own_code.stored_code(record.config) for record in records]
    versions = {item for code in codes for item in code.items()}
    count = Counter(name for name, _ in versions)
    return [
        record.changed(
            settings={f"code.{name}": sha[:8] for name, sha in code.items() if count[name] > 1}
            | differing_fields(record.experiment, record.known_config, record.meta, references)
        )
        for record, code in zip(records, codes, strict=True)
    ]


def select_runs(
    records: Sequence[RunRecord],
    names: Sequence[str] = (),
    *,
    state: str | None = None,
) -> list[RunRecord]:
    """Return the runs that fit all conditions; ``*`` in a name stands for any characters."""
    return [
        run
        for run in records
        if (not names or any(has_name(run, name) for name in names)) and state in (None, run.state)
    ]


def has_name(run: RunRecord, pattern: str) -> bool:
    folder = Path(os.path.normpath(pattern))
    if pattern and folder.is_dir():
        pattern = "." if folder.resolve() == RUNS.resolve() else RunDir(folder).name
    pattern = os.path.normpath(pattern).removeprefix(f"{RUNS}/") if pattern else pattern
    folders = [run.name, *map(str, PurePath(run.name).parents)]
    return any(name == pattern or fnmatchcase(name, pattern) for name in folders)


def short_data_name(name: str) -> str:
    """Return the name of a data set without the path to a folder of pictures."""
    kind, colon, path = name.partition(":")
    return f"{kind}{colon}{Path(path).name}" if colon else name


def rank(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs: the best test (or else validation) result first, those without one last."""
    measured = [run for run in records if run.score is not None]
    kinds = sorted({f"{run.task_name}: {run.headline.label}" for run in measured})
    if len(kinds) > 1:
        raise ConfigError(f"the results of different tasks cannot be compared ({', '.join(kinds)})")
    falling = any(run.headline.higher_is_better for run in measured)
    best_first = sorted(measured, key=lambda run: run.score or 0, reverse=falling)
    return best_first + [run for run in records if run.score is None]


def is_page_of_runs(path: Path) -> bool:
    return path.is_file() and PAGE_MARK in path.read_text(errors="replace")


def is_run_folder(run: RunDir) -> bool:
    """Return whether vitcli wrote this folder; other programs also write a config.yaml."""
    if read_record(run).status:
        return True
    try:
        config = run.config()
        text = dump(config) if own_code.is_read_raw(config) else config_text(run.spec())
    except UserError:
        return False
    # After a power loss, only the configuration may be left; a person writes it otherwise.
    return (run.path / ".lock").exists() or (run.path / "config.yaml").read_bytes() == text.encode()


def refuse_foreign_files(run: RunDir, *, rerun: bool) -> None:
    is_own = is_run_folder(run) and (rerun or run.exists)
    if not (is_own or is_effectively_empty(run.path)):
        run.refuse_use()  # another process may have begun it just now
        raise ConfigError(
            f"{run.path} holds files that vitcli did not write; choose another --name or -o"
        )


def remove_runs(runs: Sequence[RunDir]) -> list[str]:
    """Remove the files of all given runs, or of none; return files that vitcli did not write."""
    distinct = {run.path.resolve(): run for run in runs}
    for path, run in distinct.items():
        run.require_own()
        if not is_run_folder(run):
            raise InputError(f"{path}: not a folder that vitcli wrote; nothing was removed")
        refuse_link(run.path)
        run.refuse_folders()
    left: list[str] = []
    with contextlib.ExitStack() as held:
        try:
            for run in distinct.values():
                held.enter_context(run.lock())
            for path in distinct:
                left += remove_run(path)
        except OSError as error:
            raise ResourceError(f"{error.filename}: cannot be removed: {error.strerror}") from error
    return left


def refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        remove = shlex.join(["vitcli", "runs", "rm", str(folder.resolve())])
        raise InputError(
            f"{folder} is a link; nothing was removed. The folder it leads to: {remove}"
            f"   the link alone: {shlex.join(['rm', str(folder)])}"
        )


def delete_run_files(folder: Path) -> None:
    """Delete the files that a run wrote, and no other files; links are not followed."""
    for path in temporary_files(folder):
        path.unlink(missing_ok=True)
    for path in step_folders(folder / "checkpoints"):
        delete_step(path)
    configs: list[Any] = [read_record(folder).config]  # one of the two may be damaged
    with contextlib.suppress(ConfigError):
        configs.append(read_mapping(folder / "config.yaml").data)
    delete_code_copies(folder, configs)
    for path in (folder / "checkpoints", folder / own_code.FOLDER):
        with contextlib.suppress(OSError):  # another file is in it
            path.rmdir()
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        if name == "predictions.npz":
            for path in folder.glob(EVENTS):
                if not path.is_dir():
                    path.unlink()


def delete_code_copies(folder: Path, configs: Iterable[Any]) -> None:
    """Delete the unchanged copies of own code in a run or study; ``configs`` hold their hashes."""
    place = folder / own_code.FOLDER
    hashes = [own_code.stored_code(config) for config in configs if isinstance(config, dict)]
    known = {item for code in hashes for item in code.items()}
    for name, digest in known:
        with contextlib.suppress(OSError, ConfigError):  # changed, removed, or holds another file
            code = own_code.read_copy(place, name)
            is_linked = any(path.is_symlink() or link_before(path, folder) for path in code.paths)
            if code.has(digest) and not is_linked:
                for path in code.paths:
                    path.unlink()
                for path in sorted({path.parent for path in code.paths} - {place}, reverse=True):
                    path.rmdir()


def remove_run(folder: Path) -> list[str]:
    """Delete a run and the folders that become empty; return files that vitcli did not write."""
    delete_run_files(folder)
    left = foreign_files(folder)
    remove_empty_folders(folder)
    return left


def foreign_files(folder: Path) -> list[str]:
    """Return the files and links that are left in a folder, except locks."""
    return [
        str(path)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock" and (path.is_symlink() or not path.is_dir())
    ]


def remove_empty_folders(folder: Path) -> None:
    """Remove a folder that is empty except for a lock, and its empty parents under runs/."""
    if any(path.name != ".lock" for path in folder.iterdir()):
        return
    (folder / ".lock").unlink(missing_ok=True)
    folder.rmdir()
    top, folder = RUNS.resolve(), folder.resolve()
    for parent in folder.parents:
        if top not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:  # the parent holds other runs
            return
