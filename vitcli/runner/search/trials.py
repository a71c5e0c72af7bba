"""The trials of a search: Optuna is asked for points and told what their trainings gave.

Optuna's journal holds the questions and their order. What became of a trial is in its run folder,
so a search continues after any kill, and even without its journal. Several drivers may ask and tell
in one folder: the folder's lock lets one of them ask at a time.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from vitcli.runner.engines.drivers import LOGS, PLAN, prepare_folder, read_plan
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit_json, file_lock
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import TrialState as RunState
from vitcli.runner.search.definition import Search
from vitcli.runner.search.samplers import distributions, make_sampler
from vitcli.runner.search.space import Point, matches, point_key
from vitcli.runner.study.definition import Trial
from vitcli.runner.study.page import refuse_foreign_files
from vitcli.runner.study.plan import Options, model_size
from vitcli.runner.study.result import PRUNED
from vitcli.runner.study.run import plan_entry
from vitcli.runner.study.states import trial_state

JOURNAL = "search.journal"
FOLDER, RULE, FAILED = "folder", "rule", "failed"
"""Attributes of a trial in the journal: its run folder, the rule that its point breaks, and why its
training failed."""
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


class Trials:
    """The trials of a search in a folder. Unless ``writes``, its journal must exist."""

    def __init__(
        self, search: Search, root: Path, options: Options, *, writes: bool = True
    ) -> None:
        self.search, self.root, self.options = search, root, options
        self.space = distributions(search.space)
        self.parameters: dict[str, int] = {}
        """Run folder -> number of parameters, of the points that were judged."""
        self._judged: dict[str, Trial | str] = {}
        self._is_done = False
        self._read_plan()
        if not writes:
            if not (root / JOURNAL).exists():
                raise ConfigError(f"{root}: there is no such search yet; leave out --status")
            self.study = self._open(writes)
            return
        refuse_foreign_files(root)
        with prepare_folder(root):
            is_new = not (root / JOURNAL).exists()
            self.study = self._open(writes)
            self._begin_plan(self._read_plan(), replay=is_new)

    def _open(self, writes: bool) -> Study:
        path = self.root / JOURNAL
        is_up = self.search.base.task.row.headline.higher_is_better
        try:
            storage = JournalStorage(JournalFileBackend(str(path), JournalLock(path)))
            is_known = self.search.key() in optuna.get_all_study_names(storage)
            return optuna.create_study(
                storage=storage if writes or is_known else None,
                study_name=self.search.key(),
                direction="maximize" if is_up else "minimize",
                pruner=MedianPruner() if self.search.fields.pruning == "median" else NopPruner(),
                load_if_exists=True,
            )
        except OSError:
            raise
        except Exception as error:  # Optuna has no error of its own for a damaged line
            hint = "delete it, and the trials in the folder still count"
            raise InputError(f"{path}: damaged; {hint}") from error

    def _read_plan(self) -> dict[str, Any]:
        if not (self.root / PLAN).exists():
            return {"parameters": {}, "trials": {}}
        try:
            plan = read_plan(self.root)
        except (ValueError, RecursionError) as error:
            hint = "restore it, or name another folder with -o"
            raise InputError(f"{self.root / PLAN}: damaged; {hint}") from error
        if "sampler" not in plan:
            what = "the folder of a study, or of a search from before vitcli 1.1"
            raise ConfigError(f"{self.root}: {what}; name another folder with -o")
        return plan

    def _begin_plan(self, stored: dict[str, Any], *, replay: bool) -> None:
        """Write a plan with the trials so far; without a plan, a worker cannot start."""
        RunDir(self.root).refuse_links()  # the copies of own code
        for entry in stored["trials"].values() if replay else ():  # the journal was lost
            if self.space.keys() == entry["setting"].keys():
                self.study.enqueue_trial(entry["setting"], skip_if_exists=True)
        records = (self.state(folder).record for folder in self.asked())
        plan = {
            "study": self.search.name,
            "sampler": self.search.fields.sampler,
            "threads": self.search.threads,
            **self.options.request(),
            "without_test": True,
            "data_hash": next((record.data_hash for record in records if record), None),
            "parameters": stored["parameters"],
            "trials": stored["trials"],
            "saved": [],
        }
        commit_json(self.root / PLAN, plan)

    def _add_to_plan(self, trial: Trial) -> None:
        own_code.save_copies(own_code.code_to_keep(trial.spec), self.root)
        plan = self._read_plan()
        plan["parameters"][trial.variant] = self.parameters[trial.folder]
        plan["trials"][trial.folder] = plan_entry(trial)
        commit_json(self.root / PLAN, plan)

    def asked(self) -> dict[str, FrozenTrial]:
        """Return run folder -> trial, in the order of the questions, without failed trials."""
        trials = self.study.get_trials(deepcopy=False)
        chosen = [trial for trial in trials if FOLDER in trial.user_attrs]
        return {t.user_attrs[FOLDER]: t for t in chosen if FAILED not in t.user_attrs}

    def pending(self) -> list[str]:
        """Return the run folders of the trials that have no result yet."""
        return [folder for folder, trial in self.asked().items() if not trial.state.is_finished()]

    def judge(self, point: Point) -> Trial | str:
        """Return the trial of a point, or the rule that it breaks; nothing is trained."""
        key = point_key(point)
        if key not in self._judged:
            self._judged[key] = self._judge(point)
        return self._judged[key]

    def _judge(self, point: Point) -> Trial | str:
        rules = self.search.fields.rules
        if any(matches(point, pattern) for pattern in rules.exclude):
            return EXCLUDED
        try:
            spec = self.search.spec(point)
            parameters = model_size(spec)
        except ConfigError:
            return INVALID
        if rules.max_parameters is not None and parameters > rules.max_parameters:
            return f"more than {rules.max_parameters:,} parameters"
        digest = config_hash(spec)
        folder = f"{digest[:12]}/seed{spec.seed}"
        self.parameters[folder] = parameters
        return Trial(
            variant=digest[:12], setting=point, spec=spec, config_hash=digest, folder=folder
        )

    def next_folder(self) -> str | None:
        """Ask for points until one must be trained; None if the search has enough.

        A point that breaks a rule or repeats a configuration does not count as a trial.
        """
        is_grid = self.search.fields.sampler == "grid"
        limit = int(self.search.space.size) if is_grid else MAX_SKIPS
        skipped = 0
        while skipped < limit and not self._is_done:
            with prepare_folder(self.root):
                if len(self.asked()) >= self.search.num_trials or not (trial := self._ask()):
                    return None
                folder = self._accept(trial)
                if folder and not self.settle(folder):
                    return folder
            skipped = 0 if folder else skipped + 1
        self._is_done = True
        return None

    def _ask(self) -> optuna.Trial | None:
        """Ask for a point; None if each point of a small space has been settled.

        A question of a killed driver is asked again. A grid takes points that failed at its end.
        """
        trials = []
        for trial in self.study.get_trials(deepcopy=False):
            is_open = trial.state == TrialState.RUNNING and FOLDER not in trial.user_attrs
            is_whole = trial.params.keys() == self.space.keys()
            if is_open and is_whole:
                return optuna.Trial(self.study, trial._trial_id)
            if is_open:
                self.study.tell(trial.number, state=TrialState.FAIL)
            elif is_whole:
                trials.append(trial)
        settled = {point_key(trial.params) for trial in trials if FAILED not in trial.user_attrs}
        if len(settled) >= self.search.space.size:
            return None
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if self.search.fields.sampler == "grid" and not waiting:
            taken = {point_key(trial.params) for trial in trials}
            points = [p for p in self.search.space.points() if point_key(p) not in settled]
            new = (point for point in points if point_key(point) not in taken)
            self.study.enqueue_trial(next(new, points[0]))
        is_stuck = [RULE in t.user_attrs for t in trials[-MAX_REJECTED:]] == [True] * MAX_REJECTED
        self.study.sampler = make_sampler(
            self.search.fields, self.space, len(trials), is_stuck=is_stuck
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental parts of Optuna
            return self.study.ask(self.space)

    def _accept(self, question: optuna.Trial) -> str | None:
        """Return the run folder of a point that was asked for; None if it is not trained."""
        trial = self.judge(dict(question.params))
        if isinstance(trial, str) or trial.folder in self.asked():
            question.set_user_attr(RULE, trial if isinstance(trial, str) else REPEATED)
            self.study.tell(question, state=TrialState.FAIL)
            return None
        self._add_to_plan(trial)
        question.set_user_attr(FOLDER, trial.folder)
        return trial.folder

    def _trial(self, folder: str) -> Trial:
        trial = self.judge(dict(self.asked()[folder].params))
        assert isinstance(trial, Trial)
        return trial

    def state(self, folder: str) -> RunState:
        """Return the state of a trial's run folder."""
        run = RunDir(self.root / folder)
        state = trial_state(self._trial(folder), run, self.search.threads, split="val")
        if state.state == "stale":
            hint = "delete this folder, or name another folder for the search with -o"
            raise InputError(f"{run.path}: {state.reason}; {hint}")
        return state

    def settle(self, folder: str) -> bool:
        """Tell Optuna the result in a run folder; return whether there is one."""
        number, state = self.asked()[folder].number, self.state(folder)
        for epoch, score in state.record.curve if state.record else ():
            self.report(folder, epoch, score)
        if state.state == "finished" and state.record:
            self.study.tell(number, state.record.curve[-1][1], skip_if_finished=True)
        elif state.state == "diverged" or state.reason.startswith(PRUNED):
            self.study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
        return self.asked()[folder].state.is_finished()

    def report(self, folder: str, epoch: int, score: float) -> bool:
        """Report a score; return whether the trial should be stopped."""
        trial = self.asked()[folder]
        if trial.state.is_finished() or epoch >= self._trial(folder).spec.train.epochs:
            return trial.state == TrialState.PRUNED
        question = optuna.Trial(self.study, trial._trial_id)
        if epoch not in trial.intermediate_values:
            question.report(score, epoch)
        return question.should_prune()

    def prune(self, folder: str, epoch: int) -> None:
        """Note in the run folder of a stopped trial that it was pruned, and tell Optuna."""
        run = RunDir(self.root / folder)
        run.set_status("interrupted", run.last_step(), f"{PRUNED} after epoch {epoch}")
        self.settle(folder)

    def fail(self, folder: str, reason: str) -> None:
        """Tell Optuna that a training failed, so that the search asks for another point."""
        question = optuna.Trial(self.study, self.asked()[folder]._trial_id)
        question.set_user_attr(FAILED, reason)
        self.study.tell(question, state=TrialState.FAIL, skip_if_finished=True)
