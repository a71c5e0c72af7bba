"""The trials of a search: Optuna is asked for points and told what their trainings gave.

Optuna's storage is the record. A trial that ended has its whole result in an attribute, so nothing
else is needed to show the search or to continue it on another machine. A result in a run folder is
told without a training.
"""

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import Search
from vitcli.runner.search.judge import Judge, Verdict
from vitcli.runner.search.space import Point, as_label, point_key
from vitcli.runner.search.storage import (
    Place,
    open_storage,
    open_study,
    storage_errors,
    storage_id,
)
from vitcli.runner.search.trial import SearchTrial, read_curve, read_trial, trial_folder
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, EpochDone

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial

MAX_SKIPS = 500
"""Number of points in a row without a new valid one after which the search ends early."""
MAX_REJECTED = 10
"""Number of points in a row that were not trained after which random points are drawn. A sampler
learns nothing from such points, so it may propose the same one again and again."""
RESULT, RULE, FAILED = "result", "rule", "failed"
"""Attributes of a trial in the storage: its result, the rule that its point breaks, and why it has
no result."""
REPEATED = "a configuration of an earlier trial"
MIN_IMPORTANCE = 10
"""Number of finished trials below which no importances are computed."""

Planned = tuple[SearchTrial, ExperimentSpec]
"""A result to repeat, and its configuration with another seed."""


class Objective:
    """The trials of a search, and what is known about them.

    Args:
        search: The search.
        place: Its folder and storage.
        options: How its trials are trained.
        judge: Judges points; by default with the rules of the search.
        say: Receives messages.
        writes: Continue the search; the place is held. Otherwise nothing is written.

    Raises:
        ConfigError: The results are elsewhere, or in a precision that this machine does not use.
        InputError: The storage is damaged, or of another search.
    """

    def __init__(
        self,
        search: Search,
        place: Place,
        options: Options,
        judge: Judge | None = None,
        say: Callable[[str], None] = ignore_message,
        *,
        writes: bool = True,
    ) -> None:
        from vitcli.runner.search.samplers import distributions

        self.search, self.place, self.options, self.say = search, place, options, say
        self.judge, self.root = judge or Judge(search), place.root
        self.distributions = distributions(search.space)
        storage, self.id = open_storage(place, writes=writes), storage_id(place)
        name = search.study_name() + (f"-{self.id}" if place.url else "")
        with storage_errors(place):
            pareto = search.is_pareto
            self.study = open_study(search, storage, name, is_pareto=pareto, writes=writes)
            self._told = self._read(self.study)
            self.repeats: dict[str, SearchTrial] = {}
            if search.fields.repeats:
                name = f"{name}-repeats"
                self._again = open_study(search, storage, name, is_pareto=False, writes=writes)
                self.repeats = {f: each for f, (_, each) in self._read(self._again).items()}
        if writes and place.save:
            self._require_precision()
        self.open: dict[str, tuple[Trial, Verdict]] = {}
        """Run folder -> trial without a result."""
        self._repeating: dict[str, Planned] = {}
        self._pruned: set[str] = set()
        self._is_exhausted = False
        self._points = {folder.split("/")[1]: each.point for folder, each in self.results.items()}
        self.plan: dict[str, Any] = {}

    @property
    def results(self) -> dict[str, SearchTrial]:
        """Return run folder -> result, in the order of the questions."""
        ordered = sorted(self._told.items(), key=lambda item: item[1][0])
        return {folder: result for folder, (_, result) in ordered}

    def _read(self, study: "Study") -> dict[str, tuple[int, SearchTrial]]:
        """Return run folder -> number and result of every trial that ended.

        Raises:
            ValueError: A trial is of another space, or contradicts itself.
        """
        found: dict[str, tuple[int, SearchTrial]] = {}
        for trial in study.get_trials(deepcopy=False):
            if any(self.distributions.get(f) != each for f, each in trial.distributions.items()):
                raise ValueError(f"trial {trial.number} is of another space")
            if RESULT not in trial.user_attrs:
                continue
            stored = {**trial.user_attrs[RESULT], "point": dict(trial.params)}
            result = SearchTrial.model_validate(stored)
            try:
                digest = config_hash(self.search.spec(result.point))
            except ConfigError:
                continue  # an earlier version of vitcli trained this point
            values = trial.values if trial.state.name == "COMPLETE" else [result.score]
            is_possible = self.search.headline.is_possible
            scores = [score for _, score in result.curve]
            if (
                (result.score is None) != (result.state == "diverged")
                or not all(map(is_possible, [*scores, result.score or 0.0]))
                or (result.score is not None and scores and scores[-1] != result.score)
                or (values or [None])[0] != result.score
                or (digest != result.config_hash)
                or result.folder in found
            ):
                raise ValueError(f"trial {trial.number} contradicts itself")
            found[result.folder] = (trial.number, result)
        return found

    def _require_precision(self) -> None:
        """Refuse to mix saved results with those of a machine that trains in another precision."""
        from vitcli.runner.machine.device import name_precision, pick_device

        device = pick_device(self.options.device)
        for result in self.results.values():
            own = name_precision(self.search.spec(result.point).train.precision, device)
            if result.precision not in (None, own):
                raise ConfigError(
                    f"{self.place.journal}: this search has trials in {result.precision}, and this"
                    f" machine trains in {own}; name another folder with --save"
                )

    def recover(self) -> None:
        """End what a killed driver left open: its questions are asked again before others."""
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if RESULT in trial.user_attrs:
                stored = {**trial.user_attrs[RESULT], "point": dict(trial.params)}
                self._finish(trial.number, SearchTrial.model_validate(stored))
                continue
            self.study.tell(trial.number, state=TrialState.FAIL)
            if RULE not in trial.user_attrs and trial.params.keys() == self.distributions.keys():
                self.study.enqueue_trial(trial.params)

    def unfinished(self) -> list[str]:
        """Return the run folders of the trials that were begun and have no result."""
        from optuna.trial import TrialState

        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        found = []
        for trial in running:
            verdict = self.judge(dict(trial.params)) if RESULT not in trial.user_attrs else None
            if verdict and verdict.spec:
                folder = trial_folder(verdict.spec)
                self._points[folder.split("/")[1]] = verdict.point
                found.append(folder)
        return found

    def next_folder(self) -> str | None:
        """Ask for points until one must be trained; None if the search has enough.

        A point that breaks a rule or repeats a configuration does not count as a trial.
        """
        for _ in range(MAX_SKIPS):
            left = self.search.num_trials - len(self._told) - len(self.open)
            if left <= 0 or self._is_exhausted:
                return None
            trials = [each for each in self.study.get_trials(deepcopy=False) if _counts(each)]
            if len({point_key(t.params) for t in trials if _settles(t)}) >= self.search.space.size:
                return None
            trial = self._ask(trials)
            verdict = self.judge(dict(trial.params))
            folder = trial_folder(verdict.spec) if verdict.spec else ""
            if not folder or folder in self._told or folder in self.open:
                self._fail(trial, RULE, verdict.rule or REPEATED)
            elif not self._take(trial, verdict, folder):
                self.open[folder] = (trial, verdict)
                self._add_to_plan(folder, verdict.point, verdict.spec)
                self._write_plan()
                return folder
        self.say(f"no new valid configuration in {MAX_SKIPS} points; the search ends early")
        self._is_exhausted = True
        return None

    def _ask(self, trials: "list[FrozenTrial]") -> "Trial":
        from optuna.trial import TrialState

        from vitcli.runner.search.samplers import make_sampler

        fields = self.search.fields
        last = [RULE in trial.user_attrs for trial in trials[-MAX_REJECTED:]]
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if fields.sampler == "grid" and not waiting:
            self.study.enqueue_trial(self._next_of_grid(trials))
        self.study.sampler = make_sampler(
            fields, self.distributions, len(trials), is_stuck=last == [True] * MAX_REJECTED
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental parts of Optuna
            return self.study.ask(self.distributions)

    def _next_of_grid(self, trials: "list[FrozenTrial]") -> Point:
        """Return the first point that no trial has; then the first one whose trials all failed."""
        taken = {point_key(trial.params) for trial in trials}
        settled = {point_key(trial.params) for trial in trials if _settles(trial)}
        points = [*self.search.space.points()]
        return next(p for known in (taken, settled) for p in points if point_key(p) not in known)

    def _take(self, trial: "Trial", verdict: Verdict, folder: str) -> bool:
        """Tell the result in a run folder, if there is one; return whether there was."""
        self._points[folder.split("/")[1]] = verdict.point
        if result := self._result_of(verdict):
            self._tell(trial, result)
            return True
        if self.search.fields.pruning == "none":
            return False
        assert verdict.spec is not None
        for epoch, score in read_curve(RunDir(self.root / folder), verdict.spec):
            if epoch < verdict.spec.train.epochs:
                trial.report(score, epoch)
        result = self._result_of(verdict, is_pruned=True) if trial.should_prune() else None
        if result:
            self._tell(trial, result)
        return result is not None

    def _result_of(self, verdict: Verdict, *, is_pruned: bool = False) -> SearchTrial | None:
        assert verdict.spec is not None
        sizes = verdict.sizes
        try:
            return read_trial(self.root, verdict.point, verdict.spec, sizes, is_pruned=is_pruned)
        except (ValidationError, ValueError, KeyError, TypeError) as error:
            folder = self.root / trial_folder(verdict.spec)
            raise InputError(f"{folder}: damaged; restore it, or delete it") from error

    def gives_up(self, folder: str, event: EpochDone) -> bool:
        """Note the score after an epoch; return whether the trial should be stopped."""
        score = event.record.get(f"val_{self.search.headline.name}")
        epoch = event.record["epoch"]
        is_last = epoch >= self.search.base.train.epochs
        if self.search.fields.pruning == "none" or score is None or folder not in self.open:
            return False
        trial, _ = self.open[folder]
        if not is_last:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a continued trial reports an epoch again
                trial.report(score, epoch)
            if trial.should_prune():
                self._pruned.add(folder)
        return folder in self._pruned

    def end(self, folder: str, event: Ended) -> None:
        """Tell Optuna how a trial ended. One that was interrupted stays open."""
        if folder in self._repeating:
            again, spec = self._repeating[folder]
            if event.state != "failed" and (found := self._read_repeat(again, spec)):
                self._add_repeat(found)
        elif folder in self.open:
            trial, verdict = self.open[folder]
            result = self._result_of(verdict, is_pruned=folder in self._pruned)
            if event.state == "failed":
                self._fail(trial, FAILED, event.reason)
                del self.open[folder]
            elif result:
                self._tell(trial, result)

    def _tell(self, trial: "Trial", result: SearchTrial) -> None:
        stored = result.model_dump(mode="json", exclude={"point"})
        trial.set_user_attr(RESULT, stored)
        self._finish(trial.number, result)
        self._told[result.folder] = (trial.number, result)
        self.open.pop(result.folder, None)

    def _finish(self, number: int, result: SearchTrial) -> None:
        """End a trial whose result is in the storage. A diverged one is worse than every score."""
        from optuna.trial import TrialState

        cost = self.search.fields.cost
        if result.state == "finished" and result.score is not None:
            costs = [float(getattr(result, cost))] if cost else []
            self.study.tell(number, [result.score, *costs])
        else:
            state = TrialState.FAIL if self.search.is_pareto else TrialState.PRUNED
            self.study.tell(number, state=state)

    def _fail(self, trial: "Trial", name: str, text: str) -> None:
        """Tell that a trial says nothing about its point, and why."""
        from optuna.trial import TrialState

        trial.set_user_attr(name, text)
        self.study.tell(trial, state=TrialState.FAIL)

    def wanted_repeats(self) -> dict[str, Planned]:
        """Return run folder -> repeat, for configurations spread evenly over the scores."""
        repeats = self.search.fields.repeats
        done = [each for each in self.results.values() if each.state == "finished"]
        done.sort(key=lambda each: (each.score or 0.0, each.config_hash))
        if repeats is None or not done:
            return {}
        count = min(repeats.configurations, len(done))
        chosen = [done[i * (len(done) - 1) // max(1, count - 1)] for i in range(count)]
        pairs = [
            (each, self.search.spec(each.point).replace(seed=seed))
            for each in chosen
            for seed in repeats.seeds
        ]
        return {trial_folder(spec): (each, spec) for each, spec in pairs}

    def next_repeats(self) -> list[str]:
        """Return the run folders of the repeats that have no result and were not begun yet."""
        folders = []
        for folder, (each, spec) in self.wanted_repeats().items():
            if folder in self.repeats or folder in self._repeating:
                continue
            if found := self._read_repeat(each, spec):
                self._add_repeat(found)
                continue
            self._repeating[folder] = (each, spec)
            self._add_to_plan(folder, each.point, spec)
            folders.append(folder)
        if folders:
            self._write_plan()
        return folders

    def _read_repeat(self, each: SearchTrial, spec: ExperimentSpec) -> SearchTrial | None:
        return read_trial(self.root, each.point, spec, each)

    def _add_repeat(self, result: SearchTrial) -> None:
        from optuna.trial import TrialState, create_trial

        self._again.add_trial(
            create_trial(
                state=TrialState.FAIL if result.score is None else TrialState.COMPLETE,
                value=result.score,
                params=result.point,
                distributions=self.distributions,
                user_attrs={RESULT: result.model_dump(mode="json", exclude={"point"})},
            )
        )
        self.repeats[result.folder] = result

    def label(self, folder: str) -> str:
        """Return the name of a trial in messages: its hash, its seed if it repeats, its point."""
        _, digest, seed = folder.split("/")
        again = f" {seed}" if seed != f"seed{self.search.base.seed}" else ""
        names, point = self.search.space.short_names(), self._points.get(digest, {})
        words = " ".join(f"{names[field]}={as_label(value)}" for field, value in point.items())
        return f"{digest[:8]}{again} {words}".rstrip()

    def importances(self) -> dict[str, float]:
        """Return field -> importance for the score (PED-ANOVA); sums to 1.

        With fewer than ``MIN_IMPORTANCE`` finished trials there are none.
        """
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        done = [trial for trial in self.study.trials if trial.state.name == "COMPLETE"]
        if len(done) < MIN_IMPORTANCE:
            return {}
        sign = -1.0 if self.search.headline.higher_is_better else 1.0
        target = (lambda trial: sign * trial.values[0]) if self.search.is_pareto else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a target must be small where it is good
            evaluator = PedAnovaImportanceEvaluator()
            return dict(get_param_importances(self.study, evaluator=evaluator, target=target))

    def begin_plan(self) -> None:
        """Write a plan with the trials that ended, without which a worker cannot start."""
        save, folders = self.place.save, self.results
        self.plan = {
            "study": self.search.name,
            "storage_id": self.id,
            "save": str(save.resolve()) if save else None,
            "threads": self.search.threads,
            **self.options.request(),
            "without_test": True,
            "data_hash": None,
            "trials": {},
            "saved": [folder for folder in folders if not RunDir(self.root / folder).exists],
        }
        for folder, result in folders.items():
            self._add_to_plan(folder, result.point, self.search.spec(result.point))
        self._write_plan()

    def _add_to_plan(self, folder: str, point: Point, spec: ExperimentSpec | None) -> None:
        """Add a trial to the plan, which must be written before a worker is told to train it."""
        assert spec is not None
        digest = folder.split("/")[1]
        self.plan["trials"][folder] = {
            "variant": digest,
            "setting": dict(point),
            "config_hash": digest,
            "config": spec.model_dump(mode="json"),
        }

    def _write_plan(self) -> None:
        """Write the plan with the hash of the images that the results so far were trained on."""
        hashes = (result.data_hash for _, result in self._told.values())
        self.plan["data_hash"] = next(filter(None, hashes), None)
        commit_json(self.root / PLAN, self.plan)


def _counts(trial: "FrozenTrial") -> bool:
    """Return whether a trial is a question that was asked and not cut short by a kill."""
    is_cut = trial.state.name == "FAIL" and not {RESULT, RULE, FAILED} & trial.user_attrs.keys()
    return trial.state.name != "WAITING" and not is_cut


def _settles(trial: "FrozenTrial") -> bool:
    """Return whether a trial decides about its point, which one that failed does not."""
    return FAILED not in trial.user_attrs
