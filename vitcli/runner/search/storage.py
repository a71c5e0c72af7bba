"""The storage of a search: Optuna's journal in the folder of the search, or any other address.

The journal is append-only. A kill can cut its last line only, which is removed when the search
continues; anything else that is wrong with it is damage.
"""

import contextlib
import json
import os
import shlex
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitcli.runner.engines.plan_file import PLAN, read_plan
from vitcli.runner.errors import ConfigError, InputError, UserError
from vitcli.runner.files import commit, make_output_folder, read_bounded, require_utf8
from vitcli.runner.run.folder import hold_folder
from vitcli.runner.search.definition import Search

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.study import Study

Direction = Literal["maximize", "minimize"]
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

    @property
    def shown(self) -> str:
        """Return the storage as a message names it."""
        return f"--storage {self.url}" if self.url else str(self.journal)

    def has_storage(self) -> bool:
        """Return whether a search was begun here."""
        return (self.root / PLAN).is_file() if self.url else os.path.lexists(self.journal)

    def plan(self) -> dict[str, Any]:
        """Return the plan of an earlier call; empty if there is none.

        Raises:
            InputError: The plan is damaged.
        """
        path = self.root / PLAN
        try:
            return read_plan(self.root) if path.is_file() else {}
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"{path}: damaged; restore it, or name a new -o FOLDER") from error

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the search, so that only one driver asks for points at a time.

        Raises:
            InUseError: Another process runs this search.
        """
        require_utf8(self.root)
        make_output_folder(self.root)
        with contextlib.ExitStack() as held:
            for folder in dict.fromkeys((self.root, self.journal.parent)):
                held.enter_context(hold_folder(folder, "another process is running this search"))
            yield


def require_optuna() -> None:
    """Refuse to search without Optuna.

    Raises:
        ConfigError: Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise ConfigError(
            "a search needs the package optuna; in the checkout, type: pip install '.[search]'"
        )


def open_storage(place: Place, *, writes: bool) -> "BaseStorage":
    """Return Optuna's storage of a search, which a caller that writes must ``hold``.

    A caller that only reads gets an empty storage in memory if there is none.

    Raises:
        ConfigError: The journal is in another folder of ``--save``.
        InputError: The storage cannot be opened.
    """
    require_optuna()
    import optuna
    from optuna.storages import InMemoryStorage, RDBStorage

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    saved = place.plan().get("save")
    if saved and not (place.save or place.url):
        raise ConfigError(
            f"{place.root}: results of this search are in {saved}; add"
            f" --save {shlex.quote(str(saved))}"
        )
    with storage_errors(place):
        if not writes and not place.has_storage():
            return InMemoryStorage()
        return RDBStorage(place.url) if place.url else _open_journal(place, writes=writes)


def _open_journal(place: Place, *, writes: bool) -> "BaseStorage":
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path, own = place.journal, place.root / JOURNAL
    if writes and own.is_file() and not os.path.lexists(path):
        commit(path, read_bounded(own, MAX_JOURNAL))  # the search began without --save
    if os.path.lexists(path):
        content = read_bounded(path, MAX_JOURNAL)
        whole = content[: content.rfind(b"\n") + 1]
        json.loads(whole.splitlines()[-1] if whole else b"{}")
        if writes and whole != content:
            os.truncate(path, len(whole))
    lock = JournalFileOpenLock(str(path))
    if writes:  # a lock that a killed process left
        path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    return JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


@contextlib.contextmanager
def storage_errors(place: Place) -> Iterator[None]:
    """Turn what a damaged storage raises into one line that names it.

    Raises:
        InputError: Something in the block failed.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # any driver of any database raises errors of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        hint = "" if place.url else "; restore it, or begin a new search in another folder"
        raise InputError(f"{place.shown}: the storage cannot be opened: {reason}{hint}") from error


def storage_id(place: Place) -> str:
    """Return the id that tells the searches of several folders in one database apart."""
    return str(place.plan().get("storage_id") or uuid.uuid4().hex[:12])


def open_study(
    search: Search, storage: "BaseStorage", name: str, *, is_pareto: bool, writes: bool
) -> "Study":
    """Return the study of a name in a storage; it is made if it does not exist.

    Raises:
        ValueError: It has other objectives than the search.
    """
    import optuna

    from vitcli.runner.search.samplers import make_pruner

    best: Direction = "maximize" if search.headline.higher_is_better else "minimize"
    wanted: list[Direction] = [best, "minimize"] if is_pareto else [best]
    pruner = make_pruner(search.fields)
    if name in optuna.get_all_study_names(storage):
        study = optuna.load_study(study_name=name, storage=storage, pruner=pruner)
    else:
        study = optuna.create_study(
            storage=storage if writes else None,
            study_name=name,
            directions=wanted,
            pruner=pruner,
        )
    if [each.name.lower() for each in study.directions] != wanted:
        raise ValueError(f"the study {name} has other objectives")
    return study
