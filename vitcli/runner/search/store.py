"""The storage of a search: Optuna's, as SQLite in the folder of the search or at any address.

The storage knows which points were asked for and what was told about them. What a trial gave is
read from its own files. So a storage that was lost can be filled again from the run folders.
"""

import uuid
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitcli.runner.engines.plan_file import PLAN, read_plan
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.search.attributes import DIVERGED, FAILED, FOLDER, KILLED, RULE, is_evaluated
from vitcli.runner.search.definition import Search
from vitcli.runner.search.space import Point

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from optuna.trial import FrozenTrial

FILE = "optuna.db"
ORIGIN = "saved"
"""Attribute of the search: the folder of ``--save`` with results that have no run folder here."""


def require_optuna() -> None:
    """Refuse to search without Optuna.

    Raises:
        ConfigError: Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise ConfigError(
            "a search needs the package optuna; in the checkout, type: pip install '.[search]'"
        )


def open_storage(url: str) -> "BaseStorage":
    """Return Optuna's storage at an address; it is made if it does not exist."""
    from optuna.storages import RDBStorage

    return RDBStorage(url)


def is_stored(root: Path, url: str | None) -> bool:
    """Return whether the storage at an address, or the file in ``root``, has a search of it."""
    return (root / (PLAN if url else FILE)).is_file()


def _storage_id(root: Path) -> str:
    """Return the id of the search in a folder, which an earlier call wrote into the plan.

    An empty id is that of a folder of an earlier version.
    """
    try:
        return str(read_plan(root).get("storage_id", ""))
    except FileNotFoundError:
        return uuid.uuid4().hex[:12]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{root / PLAN}: damaged; restore it, or name a new -o FOLDER") from error


class Store:
    """The trials of a search in Optuna's storage, by ask and tell.

    Args:
        search: The search.
        root: Its folder, which exists.
        url: Address of a storage, such as ``sqlite:///all.db``; by default a file in ``root``.
        storage: A storage that is open already, instead of the one at ``url``.

    The storage at ``url`` may hold the searches of several folders. ``id`` tells them apart.

    Raises:
        InputError: The storage cannot be opened, or the plan in ``root`` is damaged.
    """

    def __init__(
        self,
        search: Search,
        root: Path,
        url: str | None = None,
        storage: "BaseStorage | None" = None,
    ) -> None:
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        from vitcli.runner.search.samplers import distributions

        self.search = search
        self.id = _storage_id(root)
        name = search.study_name() + (f"-{self.id}" if url and self.id else "")
        self._distributions = distributions(search.space)
        best: Literal["maximize", "minimize"] = (
            "maximize" if search.headline.higher_is_better else "minimize"
        )
        try:
            self.study: Study = optuna.create_study(
                storage=storage or open_storage(url or f"sqlite:///{root.resolve() / FILE}"),
                study_name=name,
                directions=[best, "minimize"] if search.is_pareto else [best],
                pruner=_pruner(search),
                load_if_exists=True,
            )
        except Exception as error:  # any driver of any database raises errors of its own
            reason = (str(error) or type(error).__name__).splitlines()[0]
            where = f"--storage {url}" if url else root / FILE
            raise InputError(f"{where}: the storage cannot be opened: {reason}") from error

    def trials(self) -> "list[FrozenTrial]":
        """Return all trials, those with invalid points too, by number."""
        return self.study.get_trials(deepcopy=False)

    def running(self) -> "list[FrozenTrial]":
        """Return the trials about which nothing was told yet."""
        return [trial for trial in self.trials() if trial.state.name == "RUNNING"]

    def evaluated(self) -> "list[FrozenTrial]":
        """Return the trials that count: finished, diverged or pruned, but not failed."""
        return [trial for trial in self.trials() if is_evaluated(trial)]

    def ask(self) -> tuple[int, Point]:
        """Return the number of a new trial and its point."""
        from vitcli.runner.search.samplers import make_sampler

        # A killed question leaves no trace, so that the same point is asked for again.
        trials = [trial for trial in self.trials() if trial.user_attrs.get(RULE) != KILLED]
        last = [RULE in trial.user_attrs for trial in trials[-MAX_REJECTED:]]
        is_stuck = last == [True] * MAX_REJECTED
        self.study.sampler = make_sampler(self.search, len(trials), is_stuck=is_stuck)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental parts of Optuna
            trial = self.study.ask(self._distributions)
        return trial.number, dict(trial.params)

    def thaw(self, records: Sequence[Mapping[str, Any]]) -> "list[FrozenTrial]":
        """Return the trials of records in the history of a search.

        They end now, in the order in which they ended on the first machine.
        """
        from optuna.trial import TrialState, create_trial

        trials, now = [], datetime.now()
        for record in records:
            trial = create_trial(
                state=TrialState[record["state"]],
                values=record["values"],
                params=record["params"],
                distributions={name: self._distributions[name] for name in record["params"]},
                user_attrs=record["user_attrs"],
                system_attrs=record["system_attrs"],
                intermediate_values=dict(record["curve"]),
            )
            if trial.state.is_finished():
                trial.datetime_complete = now + timedelta(microseconds=record["ended"])
            trials.append(trial)
        return trials

    def add(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add the trials of records."""
        self.study.add_trials(self.thaw(records))

    def finish(self, number: int, record: Mapping[str, Any]) -> None:
        """End a running trial as another machine ended it."""
        (trial,), storage = self.thaw([record]), self.study._storage
        trial_id = self._trial_id(number)
        known = storage.get_trial(trial_id).params
        for name, each in trial.distributions.items():
            if name not in known:
                value = each.to_internal_repr(trial.params[name])
                storage.set_trial_param(trial_id, name, value, each)
        for epoch, score in trial.intermediate_values.items():
            storage.set_trial_intermediate_value(trial_id, epoch, score)
        for name, value in trial.system_attrs.items():
            storage.set_trial_system_attr(trial_id, name, value)
        self._note(number, trial.user_attrs)
        storage.set_trial_state_values(trial_id, trial.state, trial.values)

    def note_origin(self, folder: str) -> None:
        """Note the folder of saved results that have no run folder here."""
        if self.origin() != folder:
            self.study.set_user_attr(ORIGIN, folder)

    def origin(self) -> str:
        """Return the folder of saved results that have no run folder here; empty without such."""
        return str(self.study.user_attrs.get(ORIGIN, ""))

    def skip(self, number: int, rule: str) -> None:
        """Tell that a point is not trained, and why."""
        self._end(number, "FAIL", {RULE: rule})

    def accept(self, number: int, folder: str) -> None:
        """Note the run folder of a trial before it is trained."""
        self._note(number, {FOLDER: folder})

    def tell(self, number: int, values: Sequence[float]) -> None:
        """Tell the score of a trial and, with two objectives, its cost.

        A trial whose result was lost and trained again keeps what was told first.
        """
        self.study.tell(number, list(values), skip_if_finished=True)

    def tell_diverged(self, number: int, reason: str) -> None:
        """Tell that a trial diverged: it counts, and is worse than every score."""
        state = "FAIL" if self.search.is_pareto else "PRUNED"
        self._end(number, state, {DIVERGED: reason})

    def tell_failed(self, number: int, reason: str) -> None:
        """Tell that a trial failed, so that it says nothing about its point."""
        self._end(number, "FAIL", {FAILED: reason})

    def report(self, number: int, epoch: int, score: float) -> bool:
        """Note the score after an epoch; return whether the trial should be pruned.

        A trial whose result was lost and trained again is not pruned.
        """
        storage, trial_id = self.study._storage, self._trial_id(number)
        if self.trials()[number].state.is_finished():
            return False
        storage.set_trial_intermediate_value(trial_id, epoch, score)
        return self.study.pruner.prune(self.study, storage.get_trial(trial_id))

    def tell_pruned(self, number: int) -> None:
        """Tell that a trial was stopped early; its last score counts."""
        self._end(number, "PRUNED", {})

    def _end(self, number: int, state: str, attributes: dict[str, str]) -> None:
        from optuna.trial import TrialState

        if not self.trials()[number].state.is_finished():
            self._note(number, attributes)
            self.study.tell(number, state=TrialState[state])

    def _note(self, number: int, attributes: dict[str, str]) -> None:
        for name, text in attributes.items():
            self.study._storage.set_trial_user_attr(self._trial_id(number), name, text)

    def _trial_id(self, number: int) -> int:
        return self.study._storage.get_trial_id_from_study_id_trial_number(
            self.study._study_id, number
        )

    def importances(self) -> tuple[str, dict[str, float]]:
        """Return the evaluator's name, and field -> importance for the score; sums to 1.

        With fewer than ``MIN_IMPORTANCE`` finished trials there are none.
        """
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        evaluator = PedAnovaImportanceEvaluator()
        done = [trial for trial in self.trials() if trial.state.name == "COMPLETE"]
        if len(done) < MIN_IMPORTANCE:
            return EVALUATOR, {}
        sign = -1.0 if self.search.headline.higher_is_better else 1.0
        target = (lambda trial: sign * trial.values[0]) if self.search.is_pareto else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a target must be small where it is good
            found = get_param_importances(self.study, evaluator=evaluator, target=target)
        return EVALUATOR, dict(found)


MAX_REJECTED = 10
"""Number of points in a row that were not trained after which random points are drawn. A sampler
learns nothing from such points, so it may propose the same one again and again."""
EVALUATOR = "PED-ANOVA"
"""The evaluator of importances, which is Optuna's default since 2026."""
MIN_IMPORTANCE = 10
"""Number of finished trials below which no importances are computed."""


def _pruner(search: Search) -> "BasePruner":
    from optuna import pruners

    if search.fields.pruning == "median":
        return pruners.MedianPruner()
    if search.fields.pruning == "halving":
        return pruners.SuccessiveHalvingPruner()
    return pruners.NopPruner()
