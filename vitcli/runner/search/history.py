"""The history of a search beside its saved trials, from which another machine continues.

The history is Optuna's storage as text, one trial per line: its point, its state, the score after
each epoch, and what the sampler and the pruner noted. The trials that a storage lacks are added to
it. So a sampler proposes what it would have proposed on the first machine. Each sampler and each of
its seeds has a history of its own.
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, make_folder, sha256
from vitcli.runner.search.attributes import FOLDER, is_evaluated
from vitcli.runner.search.definition import Search
from vitcli.runner.search.records import is_trial_folder
from vitcli.runner.text import portable_fields

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from vitcli.runner.search.driver import Driver

FORMAT = 1


def history_path(folder: Path, search: Search) -> Path:
    """Return the file of a search's history; the suffix is not that of saved trials."""
    return folder / search.name / f"{search.history_name()}.jsonl"


def write_history(driver: "Driver") -> None:
    """Write the trials of the storage into the folder of ``--save``, if there is one."""
    if not driver.save:
        return
    path = history_path(driver.save, driver.search)
    trials = driver.store.trials()
    done = sorted((t.datetime_complete, t.number) for t in trials if t.datetime_complete)
    order = {number: i for i, (_, number) in enumerate(done)}
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
        records = [json.loads(line) for line in lines.splitlines()]
        folders = [record["user_attrs"].get(FOLDER) for record in records]
        if not all(folder is None or is_trial_folder(folder) for folder in folders):
            raise ValueError
        return records
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: damaged; restore it, or delete it") from error


def require_saved(driver: "Driver") -> None:
    """Refuse to train a trial again whose result is in another folder of ``--save``.

    Raises:
        ConfigError: Results came from such a folder, which is not given now.
    """
    origin = driver.store.origin()
    is_given = driver.save is not None and str(driver.save.resolve()) == origin
    if origin and not is_given and driver.lacks_result():
        raise ConfigError(
            f"{driver.root}: results of this search are in {origin}; add"
            f" --save {shlex.quote(origin)}"
        )


def restore(driver: "Driver") -> int:
    """Add to the storage what the history knows beyond it; return the number of results added.

    Raises:
        ConfigError: The storage has other trials than the history, or the history has trials in a
            precision that this machine does not use.
        InputError: The history is damaged.
    """
    store = driver.store
    if not driver.save:
        return 0
    path = history_path(driver.save, driver.search)
    records, known = read_history(path), store.trials()
    both = list(zip(records, known, strict=False))
    if any(_differs(record, trial) for record, trial in both):
        raise ConfigError(
            f"{path}: this history has other trials than {driver.root}; add -o FOLDER to continue"
            " the history in a new folder, or name another folder with --save"
        )
    new = records[len(known) :]
    ended = [
        trial.number
        for record, trial in both
        if trial.state.name == "RUNNING" and record["ended"] is not None
    ]
    ended.sort(key=lambda number: int(records[number]["ended"]))
    added = store.thaw([*(records[number] for number in ended), *new])
    found = [trial for trial in added if is_evaluated(trial) and driver.find_point(trial.params)]
    if records and driver.refused:
        raise ConfigError(
            f"{path}: this history has trials in {' and '.join(sorted(driver.refused))}; name"
            " another folder with --save"
        )
    for number in ended:
        store.finish(number, records[number])
    store.add(new)
    return len(found)


def _differs(record: Mapping[str, Any], trial: "FrozenTrial") -> bool:
    """Return whether a trial has another point; a driver may be killed before it has any."""
    is_asked = trial.state.name != "RUNNING" or FOLDER in trial.user_attrs
    return is_asked and bool(record["params"] != portable_fields(trial.params))
