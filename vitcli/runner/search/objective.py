"""The trials of a search: Optuna is asked for points and told what their trainings gave.

Optuna's storage is the record. A trial that ended has its whole result in an attribute, so nothing
else is needed to show the search or to continue it on another machine. A result in a run folder is
told without a training.
"""

import itertools
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.drivers import PLAN
from vitcli.runner.errors import ConfigError
from vitcli.runner.evaluate.teacher import with_seed
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash
from vitcli.runner.files import commit_json
from vitcli.runner.machine.device import name_precision, pick_device
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.definition import Search
from vitcli.runner.search.judge import Judge, Verdict
from vitcli.runner.search.samplers import distributions, make_sampler
from vitcli.runner.search.space import Point, as_label, point_key
from vitcli.runner.search.storage import Place, open_storage, open_study
from vitcli.runner.search.trial import (
    FAILED,
    RESULT,
    RULE,
    SearchTrial,
    read_curve,
    read_trial,
    trial_folder,
)
from vitcli.runner.study.plan import Options
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, EpochDone

MAX_SKIPS = 500
"""Number of points in a row without a new valid one after which a search ends early. A grid goes on
to its last point."""
MAX_REJECTED = 10
"""Number of points in a row that were not trained after which random points are drawn. A sampler
learns nothing from such points, so it may propose the same one again and again."""
REPEATED = "a configuration of an earlier trial"
TOLD = (TrialState.COMPLETE, TrialState.PRUNED)

Repeat = tuple[SearchTrial, ExperimentSpec]
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
        self.search, self.place, self.options, self.say = search, place, options, say
        self.judge, self.root = judge or Judge(search), place.root
        self.distributions = distributions(search.space)
        self.id = str(place.plan().get("storage_id") or uuid.uuid4().hex[:12])
        """Tells the searches of several folders in one database apart."""
        name = search.study_name() + (f"-{self.id}" if place.url else "")
        with place.errors():
            storage = open_storage(place, writes=writes)
            self.study = open_study(search, storage, name, writes=writes)
            self.results = self.read(self.study)
            """Run folder -> result."""
            self.repeats: dict[str, SearchTrial] = {}
            """Run folder -> result of a training with another seed."""
            if search.fields.repeats:
                self._again = open_study(search, storage, f"{name}-repeats", writes=writes)
                self.repeats = self.read(self._again)
        if writes:
            RunDir(place.root).refuse_links()  # the copies of own code
        if writes and place.save:
            self._require_precision()
        self.open: dict[str, tuple[Trial, Verdict]] = {}
        """Run folder -> trial without a result."""
        self._repeating: dict[str, Repeat] = {}
        self._pruned: set[str] = set()
        self._is_done = False
        self._points = {folder.split("/")[1]: each.point for folder, each in self.results.items()}
        self.plan: dict[str, Any] = {}

    def read(self, study: Study) -> dict[str, SearchTrial]:
        """Return run folder -> result of every trial that ended, in the order of the questions."""
        found: dict[str, SearchTrial] = {}
        for trial in study.get_trials(deepcopy=False):
            is_told, has_result = trial.state in TOLD, RESULT in trial.user_attrs
            if any(self.distributions.get(f) != each for f, each in trial.distributions.items()):
                raise ValueError(f"trial {trial.number} is of another space")
            if (
                (is_told and not has_result)
                or not isinstance(trial.user_attrs.get(RULE, ""), str)
                or not all(
                    type(each) in (int, float) for each in trial.intermediate_values.values()
                )
            ):
                raise ValueError(f"trial {trial.number} is damaged")
            if not has_result:
                continue
            result = _stored(trial)
            try:
                digest = config_hash(self.search.spec(result.point))
            except ConfigError:
                continue  # an earlier version of vitcli trained this point
            scores = [score for _, score in result.curve] or [result.score or 0.0]
            if (
                (result.score is None) != (result.state == "diverged")
                or not all(map(self.search.headline.is_possible, scores))
                or result.score not in (None, scores[-1])
                or (trial.state.name == "COMPLETE" and trial.values[0] != result.score)
                or digest != result.config_hash
                or result.folder in found
            ):
                raise ValueError(f"trial {trial.number} contradicts itself")
            found[result.folder] = result
        return found

    def _require_precision(self) -> None:
        """Refuse to mix saved results with those of a machine that trains in another precision."""
        device = pick_device(self.options.device)
        for result in self.results.values():
            own = name_precision(self.search.spec(result.point).train.precision, device)
            if result.precision not in (None, own):
                raise ConfigError(
                    f"{self.place.journal}: this search has trials in {result.precision}, and this"
                    f" machine trains in {own}; name another folder with --save"
                )

    def _running(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def recover(self) -> None:
        """End what a killed driver left open: its questions are asked again before others."""
        for trial in self._running():
            if RESULT in trial.user_attrs:
                self._finish(trial.number, _stored(trial))
                continue
            self.study.tell(trial.number, state=TrialState.FAIL)
            if RULE not in trial.user_attrs and trial.params.keys() == self.distributions.keys():
                self.study.enqueue_trial(trial.params)

    def unfinished(self) -> list[str]:
        """Return the run folders of the trials that were begun and have no result."""
        whole = [t for t in self._running() if t.params.keys() == self.distributions.keys()]
        verdicts = [self.judge(dict(trial.params)) for trial in whole]
        found = {trial_folder(each.spec): each.point for each in verdicts if each.spec}
        self._points |= {folder.split("/")[1]: point for folder, point in found.items()}
        return [folder for folder in found if folder not in self.results]

    def next_folder(self) -> str | None:
        """Ask for points until one must be trained; None if the search has enough.

        A point that breaks a rule or repeats a configuration does not count as a trial.
        """
        is_grid = self.search.fields.sampler == "grid"
        for _ in itertools.count() if is_grid else range(MAX_SKIPS):
            if self._is_done or len(self.results) + len(self.open) >= self.search.num_trials:
                return None
            trials = [each for each in self.study.get_trials(deepcopy=False) if _counts(each)]
            settled = {point_key(t.params) for t in trials if FAILED not in t.user_attrs}
            if len(settled) >= self.search.space.size:
                return None
            trial = self._ask(trials, settled)
            verdict = self.judge(dict(trial.params))
            folder = trial_folder(verdict.spec) if verdict.spec else ""
            if not folder or folder in self.results or folder in self.open:
                self._fail(trial, RULE, verdict.rule or REPEATED)
            elif not self._is_known(trial, verdict, folder):
                self.open[folder] = (trial, verdict)
                self._add_to_plan(folder, verdict.point, verdict.spec)
                self._write_plan()
                return folder
        self.say(f"no new valid configuration in {MAX_SKIPS} points; the search ends early")
        self._is_done = True
        return None

    def _ask(self, trials: Sequence[FrozenTrial], settled: set[str]) -> Trial:
        """Ask for a point, after ``trials``. A grid takes points that failed again at its end."""
        fields = self.search.fields
        last = [RULE in trial.user_attrs for trial in trials[-MAX_REJECTED:]]
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if fields.sampler == "grid" and not waiting:
            taken = {point_key(trial.params) for trial in trials}
            points = [p for p in self.search.space.points() if point_key(p) not in settled]
            new = (point for point in points if point_key(point) not in taken)
            self.study.enqueue_trial(next(new, points[0]))
        self.study.sampler = make_sampler(
            fields, self.distributions, len(trials), is_stuck=last == [True] * MAX_REJECTED
        )
        with warnings.catch_warnings(), self.place.errors("used"):
            warnings.simplefilter("ignore")  # about experimental parts of Optuna
            return self.study.ask(self.distributions)

    def _is_known(self, trial: Trial, verdict: Verdict, folder: str) -> bool:
        """Tell what the run folder of a trial knows; return whether it has a result."""
        self._points[folder.split("/")[1]] = verdict.point
        result = self._result_of(verdict)
        if not result and self.search.fields.pruning != "none" and verdict.spec:
            for epoch, score in read_curve(RunDir(self.root / folder), verdict.spec):
                if epoch < verdict.spec.train.epochs:
                    trial.report(score, epoch)
            result = self._result_of(verdict, is_pruned=True) if trial.should_prune() else None
        if result:
            self._tell(trial, result)
        return result is not None

    def _result_of(self, verdict: Verdict, *, is_pruned: bool = False) -> SearchTrial | None:
        assert verdict.spec is not None
        where = self.root, verdict.point, verdict.spec, verdict.sizes
        return read_trial(*where, is_pruned=is_pruned)

    def gives_up(self, folder: str, event: EpochDone) -> bool:
        """Note the score after an epoch; return whether the trial should be stopped."""
        score = event.record.get(f"val_{self.search.headline.name}")
        if self.search.fields.pruning == "none" or folder not in self.open or score is None:
            return False
        epoch, (trial, verdict) = event.record["epoch"], self.open[folder]
        if verdict.spec is None or epoch >= verdict.spec.train.epochs:
            return False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a trial that continues reports an epoch again
            trial.report(score, epoch)
        if trial.should_prune():
            self._pruned.add(folder)
        return folder in self._pruned

    def end(self, folder: str, event: Ended) -> None:
        """Tell Optuna how a trial ended. One that was interrupted stays open."""
        if folder in self._repeating and event.state != "failed":
            self._add_repeat(*self._repeating[folder])
        if folder not in self.open:
            return
        trial, verdict = self.open[folder]
        if event.state == "failed":
            self._fail(trial, FAILED, event.reason)
            del self.open[folder]
        elif result := self._result_of(verdict, is_pruned=folder in self._pruned):
            self._tell(trial, result)

    def _tell(self, trial: Trial, result: SearchTrial) -> None:
        trial.set_user_attr(RESULT, result.model_dump(mode="json", exclude={"point"}))
        self._finish(trial.number, result)
        self.results[result.folder] = result
        self.open.pop(result.folder, None)

    def _finish(self, number: int, result: SearchTrial) -> None:
        if result.state == "finished":
            self.study.tell(number, self._values(result))
        else:
            state = TrialState.FAIL if self.search.is_pareto else TrialState.PRUNED
            self.study.tell(number, state=state)

    def _values(self, result: SearchTrial) -> list[float]:
        cost = self.search.fields.cost
        return [result.score or 0.0, *([float(getattr(result, cost))] if cost else [])]

    def _fail(self, trial: Trial, name: str, text: str) -> None:
        trial.set_user_attr(name, text)
        self.study.tell(trial, state=TrialState.FAIL)

    def wanted_repeats(self) -> dict[str, Repeat]:
        """Return run folder -> repeat, for configurations spread evenly over the scores."""
        repeats = self.search.fields.repeats
        done = [each for each in self.results.values() if each.state == "finished"]
        done.sort(key=lambda each: (each.score or 0.0, each.config_hash))
        if repeats is None or not done:
            return {}
        count = min(repeats.configurations, len(done))
        chosen = [done[i * (len(done) - 1) // max(1, count - 1)] for i in range(count)]
        pairs = [
            (each, with_seed(self.search.spec(each.point), seed))
            for each in chosen
            for seed in repeats.seeds
        ]
        return {trial_folder(spec): (each, spec) for each, spec in pairs}

    def next_repeats(self) -> list[str]:
        """Return the run folders of the repeats that have no result and were not begun yet."""
        wanted = self.wanted_repeats().items()
        left = {f: repeat for f, repeat in wanted if f not in self.repeats | self._repeating}
        folders = [folder for folder, repeat in left.items() if not self._add_repeat(*repeat)]
        for folder in folders:
            self._repeating[folder] = each, spec = left[folder]
            self._add_to_plan(folder, each.point, spec)
        self._write_plan()
        return folders

    def _add_repeat(self, each: SearchTrial, spec: ExperimentSpec) -> bool:
        """Store the result of a repeat from its run folder; return whether there is one."""
        result = read_trial(self.root, each.point, spec, each, is_pruned=False)
        if result:
            trial = create_trial(
                state=TrialState.FAIL if result.score is None else TrialState.COMPLETE,
                values=None if result.score is None else self._values(result),
                params=result.point,
                distributions=self.distributions,
                user_attrs={RESULT: result.model_dump(mode="json", exclude={"point"})},
            )
            self._again.add_trial(trial)
            self.repeats[result.folder] = result
        return result is not None

    def label(self, folder: str) -> str:
        """Return the name of a trial in messages: its hash, its seed if it repeats, its point."""
        _, digest, seed = folder.split("/")
        again = f" {seed}" if seed != f"seed{self.search.base.seed}" else ""
        names, point = self.search.space.short_names(), self._points.get(digest, {})
        words = " ".join(f"{names[field]}={as_label(value)}" for field, value in point.items())
        return f"{digest[:8]}{again} {words}".rstrip()

    def begin_plan(self) -> None:
        """Write a plan with the trials that ended, without which a worker cannot start."""
        save = self.place.save
        self.plan = {
            "study": self.search.name,
            "storage_id": self.id,
            "save": str(save.resolve()) if save else None,
            "threads": self.search.threads,
            **self.options.request(),
            "without_test": True,
            "trials": {},
            "saved": [folder for folder in self.results if not RunDir(self.root / folder).exists],
        }
        for folder, result in self.results.items():
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
        hashes = (result.data_hash for result in self.results.values())
        self.plan["data_hash"] = next(filter(None, hashes), None)
        for trial in self.plan["trials"].values():
            own_code.save_copies(trial["config"].get("code", {}), self.root)
        commit_json(self.root / PLAN, self.plan)


def _stored(trial: FrozenTrial) -> SearchTrial:
    return SearchTrial.model_validate({**trial.user_attrs[RESULT], "point": dict(trial.params)})


def _counts(trial: FrozenTrial) -> bool:
    is_cut = trial.state.name == "FAIL" and not {RESULT, RULE, FAILED} & trial.user_attrs.keys()
    return trial.state.name != "WAITING" and not is_cut
