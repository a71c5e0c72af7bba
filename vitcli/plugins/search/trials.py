"""The trials of a search: Optuna is asked for points and told what their trainings gave.

Optuna's journal holds the questions and their order. What became of a trial is in its run folder,
so a search continues after any kill, and even without its journal. Several drivers may ask and tell
in one folder: the folder's lock lets one of them ask at a time.
"""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import MedianPruner, NopPruner
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from vitcli.plugins.search.definition import Point, Search, SearchFields, Values, point_key
from vitcli.plugins.search.kind import JOURNAL, PRUNED
from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.drivers import LOGS, PLAN, join_drivers, other_drivers, prepare_folder
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit_json, file_lock, readable_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.definition import Trial, hashed_trial
from vitcli.runner.study.plan import Options, model_size, refuse_persons_files
from vitcli.runner.study.run import plan_entry, setup_of
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import quantity
from vitcli.runner.train.events import EpochDone, TrialEvent

Distributions = dict[str, optuna.distributions.BaseDistribution]
optuna.logging.set_verbosity(optuna.logging.CRITICAL)


def distributions(fields: SearchFields) -> Distributions:
    return {field: _distribution(values) for field, values in fields.space.items()}


def _distribution(values: Values) -> optuna.distributions.BaseDistribution:
    low, high, step = values.low, values.high, values.step
    if low is None or high is None:
        return optuna.distributions.CategoricalDistribution(values.choices or ())
    if isinstance(low, int) and isinstance(high, int):
        return optuna.distributions.IntDistribution(low, high, values.log, int(step or 1))
    return optuna.distributions.FloatDistribution(low, high, values.log, step)


def make_sampler(
    fields: SearchFields, space: Distributions, number: int, *, is_stuck: bool = False
) -> BaseSampler:
    """Return the sampler for the question with a number, which decides the draws with the seed.

    It is a pure function of the trials so far and of a seed. So a search that was killed and
    continues with one trial at a time proposes the points that an uninterrupted one would.
    If the search is stuck, a sampler may propose a point that was not trained again and again.
    """
    seed = int(np.random.SeedSequence([fields.seed, number]).generate_state(1)[0])
    if fields.sampler == "evolution" and not is_stuck:
        return EvolutionSampler(space, fields.population, fields.sample_size, seed)
    if fields.sampler == "tpe" and not is_stuck:
        return TPESampler(seed=seed)
    return RandomSampler(seed=seed)


class EvolutionSampler(RandomSampler):
    """Regularised (ageing) evolution (Real et al. 2019, "Regularized Evolution for Image Classifier
    Architecture Search", algorithm 1).

    The population is the youngest ``population`` finished trials. Of ``sample_size`` random members
    the best becomes a parent, and its child differs from it in one field. The first ``population``
    trials are random. Deviation: the members are drawn without replacement; the paper draws with
    it.
    """

    def __init__(self, space: Distributions, population: int, sample_size: int, seed: int) -> None:
        super().__init__(seed=seed)
        self._space, self._population, self._sample_size = space, population, sample_size
        self._draws = np.random.default_rng(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        def draw(name: str) -> Any:
            return self.sample_independent(study, trial, name, search_space[name])

        point = {name: draw(name) for name in search_space}
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        members = sorted(done, key=lambda member: (member.datetime_complete, member.number))
        if len(members) < self._population:
            return point
        size = min(self._sample_size, self._population)
        places = self._draws.choice(self._population, size=size, replace=False)
        sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
        sample = [members[-self._population :][place] for place in places]
        parent = max(sample, key=lambda member: sign * (member.value or 0.0)).params
        name = [*search_space][int(self._draws.integers(len(search_space)))]
        while point[name] == parent[name]:
            point[name] = draw(name)
        return parent | {name: point[name]}


FOLDER, RULE = "folder", "rule"
"""Attributes of a trial in the journal: its run folder, or the rule that its point breaks."""
INVALID, EXCLUDED = "not a valid configuration", "left out by search.rules.exclude"
REPEATED = "a configuration of an earlier trial"
MAX_SKIPS = 500
"""Number of points in a row without a new valid one after which a search ends early. A grid goes on
to its last point."""
MAX_REJECTED = 10
"""Number of points in a row that were not trained after which random points are drawn."""


class JournalLock(JournalFileOpenLock):
    """A lock that a killed process does not leave behind; a line that it did not end is cut off."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = file_lock(journal.parent / LOGS / "journal.lock")

    def acquire(self) -> bool:
        self._lock.acquire()
        content = self._journal.read_bytes()
        if not content.endswith(b"\n"):
            os.truncate(self._journal, content.rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        self._lock.release()


def read_plan(root: Path) -> dict[str, Any]:
    plan = readable_json(root / PLAN)
    if plan and "sampler" not in plan:
        what = "the folder of a study, or of a search from before vitcli 1.1"
        raise ConfigError(f"{root}: {what}; name another folder with -o")
    return {"parameters": {}, "trials": {}} | plan


class Trials:
    """The trials of a search in a folder. Unless ``writes``, its journal must exist."""

    def __init__(
        self, search: Search, root: Path, options: Options, *, writes: bool = True
    ) -> None:
        self.search, self.root, self.options = search, root, options
        self.space = distributions(search.fields)
        read_plan(self.root)
        if writes:
            with prepare_folder(root):
                is_new = not (root / JOURNAL).exists()
                self.study = self._open()
                self._begin_plan(read_plan(self.root), replay=is_new)
        elif (root / JOURNAL).exists():
            self.study = self._open(writes=False)
        else:
            raise ConfigError(f"{root}: no trial was begun yet; leave out --status")

    def _open(self, *, writes: bool = True) -> Study:
        path, key = self.root / JOURNAL, self.search.key()
        is_up = self.search.base.task.row.headline.higher_is_better
        try:
            storage = JournalStorage(JournalFileBackend(str(path), JournalLock(path)))
            if not writes:  # create_study writes even if the study exists
                if key in optuna.get_all_study_names(storage):
                    return optuna.load_study(study_name=key, storage=storage)
                raise ConfigError(
                    f"{self.root}: its trials are of another space, other rules or another default;"
                    f" restore {self.search.path}, or search anew: leave out --status"
                )
            return optuna.create_study(
                storage=storage,
                study_name=key,
                direction="maximize" if is_up else "minimize",
                pruner=MedianPruner() if self.search.fields.pruning == "median" else NopPruner(),
                load_if_exists=True,
            )
        except (LookupError, TypeError, ValueError) as error:  # Optuna has no error of its own
            hint = "delete it, and the trials in the folder still count"
            raise InputError(f"{path}: damaged; {hint}") from error

    def _begin_plan(self, stored: dict[str, Any], *, replay: bool) -> None:
        """Write a plan with the trials so far; without a plan, a worker cannot start."""
        RunDir(self.root).refuse_links()  # the copies of own code
        for entry in stored["trials"].values() if replay else ():  # the journal was lost
            if self.space.keys() == entry["setting"].keys():
                self.study.enqueue_trial(entry["setting"], skip_if_exists=True)
        entries = {f: plan_entry(self.trial(t.params)) for f, t in self.asked().items()}
        records = map(self.record, entries)
        plan = {
            "study": self.search.name,
            "sampler": self.search.fields.sampler,
            "threads": self.search.threads,
            **self.options.request(),
            "without_test": True,
            "data_hash": next((r.data_hash for r in records if r.has_result), None),
            "parameters": stored["parameters"],
            "trials": stored["trials"] | entries,
        }
        commit_json(self.root / PLAN, plan)

    def asked(self) -> dict[str, FrozenTrial]:
        """Return run folder -> trial, in the order of the questions."""
        trials = self.study.get_trials(deepcopy=False)
        return {t.user_attrs[FOLDER]: t for t in trials if FOLDER in t.user_attrs}

    def pending(self) -> list[str]:
        return [folder for folder, trial in self.asked().items() if not trial.state.is_finished()]

    def skipped(self) -> dict[str, int]:
        trials = self.study.get_trials(deepcopy=False)
        rules = Counter(trial.user_attrs[RULE] for trial in trials if RULE in trial.user_attrs)
        return dict(sorted(rules.items()))

    def next_folder(self) -> str | None:
        """Ask for points until one must be trained; None if the search has enough."""
        while True:
            with prepare_folder(self.root):
                if len(self.asked()) >= self.search.num_trials or not (question := self._ask()):
                    return None
                point = dict(question.params)
                if rule := self._broken_rule(point):
                    question.set_user_attr(RULE, rule)
                    self.study.tell(question, state=TrialState.FAIL)
                    continue
                trial = self.trial(point)
                refuse_persons_files(self.root, [trial])
                own_code.save_copies(trial.spec, self.root)
                plan = read_plan(self.root)
                plan["parameters"][trial.variant] = model_size(trial.spec)
                plan["trials"][trial.folder] = plan_entry(trial)
                commit_json(self.root / PLAN, plan)
                question.set_user_attr(FOLDER, trial.folder)
            if not self.settle(trial.folder):
                return trial.folder

    def _ask(self) -> optuna.Trial | None:
        """Ask for a point; None if each of a small space, or too many in a row, were skipped."""
        trials = []
        for trial in self.study.get_trials(deepcopy=False):
            if {FOLDER, RULE} & trial.user_attrs.keys():
                trials.append(trial)
            elif trial.state == TrialState.RUNNING:  # of a killed driver: it is asked again
                self.study.tell(trial.number, state=TrialState.FAIL)
        fields, taken = self.search.fields, {point_key(trial.params) for trial in trials}
        skips = sum(1 for _ in takewhile(lambda trial: RULE in trial.user_attrs, trials[::-1]))
        if len(taken) >= fields.size or (fields.sampler != "grid" and skips >= MAX_SKIPS):
            return None
        is_stuck = skips >= MAX_REJECTED
        self.study.sampler = make_sampler(fields, self.space, len(trials), is_stuck=is_stuck)
        if fields.sampler == "grid":
            point = next(point for point in fields.points() if point_key(point) not in taken)
            with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
                self.study.sampler = PartialFixedSampler(point, self.study.sampler)
        return self.study.ask(self.space)

    def _broken_rule(self, point: Point) -> str:
        rules = self.search.fields.rules
        if rules.excludes(point):
            return EXCLUDED
        try:
            trial = self.trial(point)
            parameters = model_size(trial.spec)
        except ConfigError:
            return INVALID
        if rules.max_parameters is not None and parameters > rules.max_parameters:
            return f"more than {rules.max_parameters:,} parameters"
        return REPEATED if trial.folder in self.asked() else ""

    def trial(self, point: Point) -> Trial:
        spec = self.search.spec(point)
        return hashed_trial(spec, config_hash(spec), point)

    def record(self, folder: str) -> RunRecord:
        trial = self.trial(self.asked()[folder].params)
        return trial_state(trial, RunDir(self.root / folder), self.search.threads, split="val")

    def settle(self, folder: str) -> bool:
        """Tell Optuna the result in a run folder; return whether there is one."""
        number, record = self.asked()[folder].number, self.record(folder)
        if record.state == "finished":
            self.study.tell(number, record.curve[-1][1], skip_if_finished=True)
        elif record.state == "diverged" or record.reason.startswith(PRUNED):
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        return self.asked()[folder].state.is_finished()

    def is_hopeless(self, folder: str, epoch: int, score: float) -> bool:
        """Report the score of an epoch; return whether pruning stops the trial after it."""
        trial = self.asked()[folder]
        if epoch >= self.trial(trial.params).spec.train.epochs:
            return False
        question = optuna.Trial(self.study, trial._trial_id)
        if epoch not in trial.intermediate_values:
            question.report(score, epoch)
        return question.should_prune()


MAX_FAILURES = 3
"""Number of failed trials in a row after which the search stops."""


class SearchDrive(Drive):
    """Trains the trials of a search, each of which decides what comes next."""

    def __init__(
        self, trials: Trials, setup: Setup, on_event: Callable[[TrialEvent], None]
    ) -> None:
        budget = trials.options.budget
        super().__init__(trials.root, setup, on_event, budget=budget, max_failures=MAX_FAILURES)
        self.trials = trials
        self._begun: set[str] = set()
        """Run folders of the trials that this driver trains or waits for."""
        self._pruned: dict[str, int] = {}
        """Run folder -> epoch after which this driver stops the trial."""

    def first(self, driver: int) -> list[str]:
        """Return the trials to begin with: those of killed drivers, and new ones."""
        folders = [folder for folder in self.trials.pending() if not self.trials.settle(folder)]
        if other_drivers(self.root, own=driver):
            folders = [folder for folder in folders if not RunDir(self.root / folder).is_in_use()]
        # Trials that failed in an earlier call come last, so that they stop no search for good.
        folders = [folder for folder in folders if self.trials.record(folder).state != "failed"]
        self._begun.update(folders)
        while len(folders) < (self.setup.count or 1) and (more := self.more()):
            folders.extend(more)
        return folders

    def more(self) -> Sequence[str]:
        """Return the next trial; once there is none, those that other drivers still train."""
        folder = self.trials.next_folder()
        others = [other for other in self.trials.pending() if other not in self._begun]
        folders = [folder] if folder else others
        self._begun.update(folders)
        return folders

    def end(self, found: TrialEvent) -> None:
        folder = found.folder
        if not self.trials.settle(folder) and folder in self._pruned:
            run = RunDir(self.root / folder)
            reason = f"{PRUNED} after epoch {self._pruned[folder]}"
            run.set_status("interrupted", run.last_step(), reason)
            self.trials.settle(folder)

    def gives_up(self, found: TrialEvent) -> bool:
        event, folder = found.event, found.folder
        search = self.trials.search
        if search.fields.pruning == "none" or not isinstance(event, EpochDone):
            return False
        score = event.record.get(f"val_{search.base.task.row.headline.name}")
        epoch = event.record["epoch"]
        if score is not None and self.trials.is_hopeless(folder, epoch, score):
            self._pruned[folder] = epoch
        return folder in self._pruned


def run_search(trials: Trials, on_event: Callable[[TrialEvent], None]) -> None:
    search, options = trials.search, trials.options
    with join_drivers(trials.root) as driver:
        drive = SearchDrive(trials, setup_of(options, search.threads, driver), on_event)
        drive.run(drive.first(driver))
    if drive.is_stopped():
        done = len(trials.asked()) - len(trials.pending())
        total = quantity(search.num_trials, "trial")
        raise drive.stopped_error(f"{done} of {total} done. Continue: {options.command}")
