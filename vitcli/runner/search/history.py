"""The history of a search beside its saved trials, from which another machine continues.

The history is Optuna's storage as text, one trial per line: its point, its state, the score after
each epoch, and what the sampler and the pruner noted. A storage that has none or only the first of
these trials gets the others. So a sampler proposes what it would have proposed on the first
machine.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_folder, sha256
from vitcli.runner.search.attributes import is_evaluated
from vitcli.runner.search.definition import Search
from vitcli.runner.text import portable_fields

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from vitcli.runner.search.driver import Driver

FORMAT = 1


def history_path(folder: Path, search: Search) -> Path:
    """Return the file of a search's history; the suffix is not that of saved trials."""
    return folder / search.name / f"{search.study_name()}.jsonl"


def write_history(driver: "Driver") -> None:
    """Write the trials of the storage into the folder of ``--save``, if there is one."""
    if not driver.save:
        return
    path = history_path(driver.save, driver.search)
    trials = driver.store.trials()
    done = [trial for trial in trials if trial.datetime_complete]
    order = {t.number: i for i, t in enumerate(sorted(done, key=lambda t: t.datetime_complete))}
    records = (_record(trial) | {"ended": order.get(trial.number)} for trial in trials)
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    header = {"format": FORMAT, "sha256": sha256(lines.encode())}
    make_folder(path.parent)
    commit(path, f"{json.dumps(header)}\n{lines}".encode())


def _record(trial: "FrozenTrial") -> dict[str, Any]:
    return {
        "state": trial.state.name,
        "params": portable_fields(trial.params),
        "values": trial.values,
        "curve": sorted(trial.intermediate_values.items()),
        "user_attrs": trial.user_attrs,
        "system_attrs": trial.system_attrs,
    }


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the records of a history in the order of their numbers; none without the file.

    Raises:
        InputError: The file is damaged.
    """
    if not path.exists():
        return []
    try:
        header, _, lines = path.read_text().partition("\n")
        if json.loads(header) != {"format": FORMAT, "sha256": sha256(lines.encode())}:
            raise ValueError
        return [json.loads(line) for line in lines.splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged; restore it, or delete it") from error


def require_saved(driver: "Driver") -> None:
    """Refuse to train again what has its results in a folder of ``--save`` only.

    Raises:
        ConfigError: Results of this search came from such a folder, and no folder is given.
    """
    origin = driver.store.origin()
    if origin and not driver.save:
        raise ConfigError(
            f"{driver.root}: results of this search are in {origin}; add --save {origin}"
        )


def restore(driver: "Driver") -> int:
    """Add to the storage what the history knows beyond it; return the number of results added.

    Nothing is added if the saved trials are in a precision that this machine does not use.

    Raises:
        ConfigError: The storage has other trials than the history.
        InputError: The history is damaged.
    """
    store = driver.store
    if not driver.save:
        return 0
    path = history_path(driver.save, driver.search)
    records, known = read_history(path), store.trials()
    both = list(zip(records, known, strict=False))
    if any(record["params"] != portable_fields(trial.params) for record, trial in both):
        raise ConfigError(
            f"{path}: this file has other trials than the search in {driver.root}; name another"
            " folder with --save, or delete the file"
        )
    new = records[len(known) :]
    ended = [t for record, t in both if t.state.name == "RUNNING" and record["ended"] is not None]
    done = [*ended, *(trial for trial in store.thaw(new) if is_evaluated(trial))]
    found = [trial for trial in done if driver.find_point(trial.params)]
    if driver.refused or not found:
        return 0
    for trial in ended:
        store.finish(trial.number, records[trial.number])
    store.add(new)
    return len(found)
