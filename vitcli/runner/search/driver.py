"""The driver of a search: it asks for points, trains them as trials, and tells their scores.

The driver writes the plan before it adds a job, and tells Optuna after the run folder has its
result. So it can be killed at any instant: the next call tells what is done, continues what is
not, and asks for the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.drive import mark_failed
from vitcli.runner.engines.engine import Job
from vitcli.runner.engines.plan_file import PLAN
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.search.attributes import FOLDER, KILLED, REPEATED, is_evaluated, is_lost
from vitcli.runner.search.definition import Search
from vitcli.runner.search.judge import Judge, Verdict
from vitcli.runner.search.records import (
    SearchTrial,
    is_trial_folder,
    pruned_trial,
    read_trial,
    save_trial,
    trial_folder,
)
from vitcli.runner.search.space import Point, describe_point, point_key
from vitcli.runner.search.store import Store
from vitcli.runner.study.plan import Options
from vitcli.runner.train.events import Ended, EpochDone, Message, TrialEvent

MAX_SKIPS = 500
"""Number of points in a row without a new valid one after which the search ends early."""
MAX_FAILURES = 3
"""Number of failed trials in a row after which the search stops."""

OnEvent = Callable[[TrialEvent], None]


@dataclass
class Driver:
    """The state of a search while it runs.

    ``saved`` are results of an earlier search, by configuration hash and seed. They are told in the
    place of a training. With ``save``, each new result is also written into that folder.
    """

    search: Search
    root: Path
    options: Options
    store: Store
    judge: Judge
    saved: Mapping[tuple[str, int], SearchTrial]
    save: Path | None
    on_event: OnEvent
    verdicts: dict[str, tuple[int, Verdict]] = field(default_factory=dict)
    """Run folder -> number of the trial and its point, for every accepted point."""
    repeats: dict[str, tuple[ExperimentSpec, Verdict]] = field(default_factory=dict)
    """Run folder -> configuration and its point, for every repeat that is to be trained."""
    points: dict[str, Point] = field(default_factory=dict)
    """First part of a configuration hash -> point, of failed trials too."""
    results: dict[str, SearchTrial] = field(default_factory=dict)
    """Run folder -> result."""
    plan: dict[str, Any] = field(default_factory=dict)
    is_exhausted: bool = False
    failures: list[str] = field(default_factory=list)
    """The reasons of failed trials since the last one that did not fail."""
    _pruned: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    """Precisions of saved trials that are not used, as this machine trains in another one."""

    def read(self) -> list[str]:
        """Read the trials of earlier calls; return the run folders without a result."""
        missing = []
        for trial in self.store.trials():
            folder = trial.user_attrs.get(FOLDER)
            is_running = trial.state.name == "RUNNING"
            if folder is None or not (is_running or is_evaluated(trial)):
                continue
            if not is_trial_folder(folder):
                raise InputError(
                    f"{self.root}: the storage of this search is damaged: trial {trial.number} is"
                    " not in its folder; restore it, or begin a new search with -o FOLDER"
                )
            verdict = self.judge(dict(trial.params))
            if verdict.spec is None:
                continue  # another version of vitcli trained this point
            self.verdicts[folder] = (trial.number, verdict)
            self.points[folder.split("/")[1]] = verdict.point
            if result := self._find(verdict, is_pruned=trial.state.name == "PRUNED"):
                self._keep(folder, result)
            else:
                missing.append(folder)
        return missing

    def recover(self) -> list[Job]:
        """Tell what a killed driver did not tell; return the jobs that it left unfinished."""
        missing = self.read()
        for trial in self.store.running():
            folder = trial.user_attrs.get(FOLDER)
            if folder is None:
                self.store.skip(trial.number, KILLED)
            elif folder in self.results:
                self._tell(trial.number, self.results[folder])
        return [Job(folder) for folder in missing]

    def label(self, folder: str) -> str:
        """Return the name of a trial in messages: its hash, its seed if it repeats, its point."""
        _, digest, seed = folder.split("/")
        again = f" {seed}" if seed != f"seed{self.search.base.seed}" else ""
        point = describe_point(self.points.get(digest, {}), self.search.space.short_names())
        return f"{digest[:8]}{again} {point}".rstrip()

    def lacks_result(self) -> bool:
        """Return whether a trial counts that has no result, neither here nor in a saved file."""
        return any(
            self._find(verdict, is_pruned=trial.state.name == "PRUNED") is None
            for trial in self.store.evaluated()
            if (verdict := self.judge(dict(trial.params))).spec
        )

    def _find(self, verdict: Verdict, *, is_pruned: bool = False) -> SearchTrial | None:
        """Return the result of a configuration, from its run folder or from a saved file."""
        assert verdict.spec is not None
        where = self.root, verdict.point, verdict.spec, verdict.sizes
        if found := read_trial(*where):
            return found
        saved, pruned = self.find_saved(verdict, verdict.spec), None
        if is_pruned:
            pruned = pruned_trial(*where)
        if self.save and saved and saved != pruned:
            self.store.note_origin(str(self.save.resolve()))
        return saved or pruned

    def find_saved(self, verdict: Verdict, spec: ExperimentSpec) -> SearchTrial | None:
        """Return the saved result of a configuration in the precision of this machine.

        It may come from a search with other fields, so it gets the point of this one.
        """
        from vitcli.runner.machine.device import name_precision, pick_device

        key = verdict.config_hash, spec.seed
        found = self.saved.get(key)
        if found is None:
            return None
        scores = [score for _, score in found.curve] + [found.score or 0.0]
        if not all(map(self.search.headline.is_possible, scores)):
            raise InputError(
                f"the saved trial {trial_folder(*key)} has an impossible"
                f" {self.search.headline.label}; restore its file, or delete it"
            )
        found = found.replace(point=dict(verdict.point))
        if found.precision is None:
            return found
        own = name_precision(spec.train.precision, pick_device(self.options.device))
        if found.precision == own:
            return found
        if found.precision not in self.refused:
            self.refused.add(found.precision)
            self._say(f"saved trials in {found.precision} are not used: this search is in {own}")
        return None

    def find_point(self, point: Point) -> SearchTrial | None:
        """Return the saved result of a point in the precision of this machine."""
        verdict = self.judge(point)
        return self.find_saved(verdict, verdict.spec) if verdict.spec else None

    def next_job(self) -> Job | None:
        """Ask for points until one must be trained; None if the search has enough.

        A point that breaks a rule or repeats a configuration does not count as a trial.
        """
        for _ in range(MAX_SKIPS):
            if self.is_exhausted or self._num_open() <= 0:
                return None
            number, point = self.store.ask()
            verdict = self.judge(point)
            if verdict.spec is None:
                self.store.skip(number, verdict.rule)
                self._note_exhaustion()
                continue
            folder = trial_folder(verdict.config_hash, verdict.spec.seed)
            if folder in self.verdicts:
                self.store.skip(number, REPEATED)
                self._note_exhaustion()
                continue
            self.store.accept(number, folder)
            self.verdicts[folder] = (number, verdict)
            self.points[folder.split("/")[1]] = verdict.point
            if result := self._find(verdict):
                self._keep(folder, result)
                self._tell(number, result)
                continue
            self.add_to_plan(folder, verdict.spec, verdict.point)
            self.write_plan()
            return Job(folder)
        self._say(f"no new valid configuration in {MAX_SKIPS} points; the search ends early")
        self.is_exhausted = True
        return None

    def _num_open(self) -> int:
        running = sum(folder not in self.results for folder in self.verdicts)
        return self.search.num_trials - len(self.store.evaluated()) - running

    def _note_exhaustion(self) -> None:
        """End the search if every point of a finite space has been settled."""
        trials = [trial for trial in self.store.trials() if not is_lost(trial)]
        if len(trials) >= self.search.space.size:
            seen = {point_key(each.params) for each in trials}
            self.is_exhausted = len(seen) >= self.search.space.size

    def handle(self, found: TrialEvent) -> None:
        """Tell Optuna what an event says about its trial."""
        event = found.event
        if not isinstance(event, Ended):
            return
        if event.state == "failed":
            mark_failed(RunDir(self.root / found.folder), event.reason)
            self.failures.append(event.reason)
        if found.folder in self.verdicts:
            self._end(*self.verdicts[found.folder], found.folder, event)
        elif found.folder in self.repeats:
            self._end_repeat(*self.repeats[found.folder])

    def should_prune(self, found: TrialEvent) -> bool:
        """Return whether a trial should be stopped after the epoch that an event reports."""
        event = found.event
        if not isinstance(event, EpochDone) or self.search.fields.pruning == "none":
            return False
        score = event.record.get(f"val_{self.search.headline.name}")
        is_last = event.record["epoch"] >= self.search.base.train.epochs
        if score is None or is_last or found.folder not in self.verdicts:
            return False
        number, _ = self.verdicts[found.folder]
        if self.store.report(number, event.record["epoch"], score):
            self._pruned.add(found.folder)
            return True
        return False

    def _end_repeat(self, spec: ExperimentSpec, verdict: Verdict) -> None:
        """Save the result of a repeat, if it has one. Optuna does not know repeats."""
        if result := read_trial(self.root, verdict.point, spec, verdict.sizes):
            self.failures.clear()
            self.save_new(result)

    def _end(self, number: int, verdict: Verdict, folder: str, event: Ended) -> None:
        result = self._find(verdict, is_pruned=folder in self._pruned)
        if event.state in ("finished", "diverged") and result:
            self.failures.clear()
            self._keep(folder, result)
            self._tell(number, result)
        elif event.state == "interrupted" and folder in self._pruned and result:
            self._keep(folder, result)
            self.store.tell_pruned(number)
        elif event.state == "failed":
            self.store.tell_failed(number, event.reason)
            del self.verdicts[folder]

    def _keep(self, folder: str, result: SearchTrial) -> None:
        self.results[folder] = result
        self.save_new(result)

    def save_new(self, result: SearchTrial) -> None:
        """Write a result into the folder of ``save``, unless it comes from there."""
        saved = self.saved.get((result.config_hash, result.seed))
        if self.save and (saved is None or saved.precision != result.precision):
            save_trial(self.save, self.search.name, result)

    def _tell(self, number: int, result: SearchTrial) -> None:
        if result.state == "pruned":
            self.store.tell_pruned(number)
        elif result.score is None:
            self.store.tell_diverged(number, result.reason)
        else:
            cost = self.search.fields.cost
            self.store.tell(
                number, [result.score, *([float(getattr(result, cost))] if cost else [])]
            )

    def add_to_plan(self, folder: str, spec: ExperimentSpec, point: Point) -> None:
        """Add a trial to the plan, which must be written before a worker is told to train it."""
        digest = folder.split("/")[1]
        self.plan["trials"][folder] = {
            "variant": digest,
            "setting": dict(point),
            "config_hash": digest,
            "config": spec.model_dump(mode="json"),
        }

    def write_plan(self) -> None:
        """Write the plan with the hash of the images that the results so far were trained on."""
        hashes = (result.data_hash for result in self.results.values())
        self.plan["data_hash"] = next(filter(None, hashes), None)
        commit_json(self.root / PLAN, self.plan)

    def begin_plan(self) -> None:
        """Write a plan with the accepted trials, without which a worker cannot start."""
        options = self.options
        self.plan = {
            "study": self.search.name,
            "storage_id": self.store.id,
            "threads": self.search.threads,
            "device": options.device,
            "data_dir": str(options.data_dir.resolve()) if options.data_dir else None,
            "offline": options.offline,
            "command": options.command,
            "without_test": True,
            "data_hash": None,
            "trials": {},
            "saved": [],
        }
        for folder, (_, verdict) in self.verdicts.items():
            assert verdict.spec is not None
            is_saved = folder in self.results and not RunDir(self.root / folder).exists
            self.plan["saved"] += [folder] if is_saved else []
            self.add_to_plan(folder, verdict.spec, verdict.point)
        self.write_plan()

    def _say(self, text: str) -> None:
        self.on_event(TrialEvent("", Message(text=text)))
