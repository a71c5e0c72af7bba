"""The storage of a search: Optuna's journal in the folder of the search, or a database.

The journal is append-only. A kill can cut its last line only, which is removed when the search
continues; anything else that is wrong with it is damage.
"""

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study, StudyDirection

from vitcli.runner.engines.drivers import PLAN, read_plan
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.files import commit, make_output_folder, read_bounded, require_utf8
from vitcli.runner.run.folder import hold_folder
from vitcli.runner.search.definition import Search
from vitcli.runner.search.samplers import make_pruner

JOURNAL = "search.journal"
MAX_JOURNAL = 1 << 30
"""Largest size of a journal in bytes."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a search is: its folder, its storage and its saved results."""

    root: Path
    """Folder of the run folders and of the document."""
    name: str
    """Name of the search."""
    url: str | None = None
    """Address of a database, such as ``sqlite:///all.db``, instead of the journal."""
    save: Path | None = None
    """Folder that keeps the journal and the final stage, to commit them."""

    @property
    def journal(self) -> Path:
        return (self.save / self.name if self.save else self.root) / JOURNAL

    def has_storage(self) -> bool:
        plan = self.plan()
        return bool(plan) if self.url else os.path.lexists(self.journal)

    def plan(self) -> dict[str, Any]:
        """Return the plan of an earlier call; empty if there is none."""
        path = self.root / PLAN
        try:
            found = read_plan(self.root) if path.is_file() else {}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: damaged; restore it, or name a new -o FOLDER") from error
        saved = found.get("save")
        if saved and not (self.save or self.url):
            hint = f"add --save {shlex.quote(str(saved))}"
            raise ConfigError(f"{self.root}: results of this search are in {saved}; {hint}")
        return found

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the search, so that only one driver asks for points at a time."""
        require_utf8(self.root)
        make_output_folder(self.root)
        with contextlib.ExitStack() as held:
            for folder in dict.fromkeys((self.root, self.journal.parent)):
                held.enter_context(hold_folder(folder, "another process is running this search"))
            yield

    @contextlib.contextmanager
    def errors(self, verb: str = "opened") -> Iterator[None]:
        """Turn what a damaged storage raises into one line that names it."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # any driver of any database raises errors of its own
            reason = (str(error) or type(error).__name__).splitlines()[0]
            where = f"--storage {self.url}" if self.url else self.journal
            raise InputError(f"{where}: the storage cannot be {verb}: {reason}") from error


def open_storage(place: Place, *, writes: bool) -> BaseStorage:
    """Return Optuna's storage of a search; a caller that writes must ``hold`` the place.

    A caller that only reads gets an empty storage in memory if there is none.
    """
    path = place.journal
    if not (writes or place.has_storage()):
        return InMemoryStorage()
    if place.url:
        return RDBStorage(place.url)
    own = place.root / JOURNAL
    if writes and own.is_file() and not os.path.lexists(path):
        commit(path, read_bounded(own, MAX_JOURNAL))  # the search began without --save
    if os.path.lexists(path):
        content = read_bounded(path, MAX_JOURNAL)
        whole = content[: content.rfind(b"\n") + 1]
        json.loads(whole.splitlines()[-1] if whole else b"{}")
        if writes and whole != content:
            os.truncate(path, len(whole))
    if writes:  # a lock that a killed process left
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))


def open_study(search: Search, storage: BaseStorage, name: str, *, writes: bool) -> Study:
    """Return the study of a name in a storage; it is made, in memory unless ``writes``, if there is
    none.
    """
    is_up, pruner = search.headline.higher_is_better, make_pruner(search.fields)
    wanted = [StudyDirection.MAXIMIZE if is_up else StudyDirection.MINIMIZE]
    wanted += [StudyDirection.MINIMIZE] * search.is_pareto
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage, pruner=pruner)
    else:
        place = storage if writes else None
        study = optuna.create_study(
            storage=place, study_name=name, directions=wanted, pruner=pruner
        )
    if study.directions != wanted:
        raise ValueError(f"the study {name} has other objectives")
    return study
