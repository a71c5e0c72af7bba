"""The trainings of a comparison: pair after pair, until there is a verdict."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.decide.csv_file import image_variance
from vitcli.plugins.decide.ledger import Campaign, Idea, Side, update
from vitcli.runner.engines.drive import Drive, error_of
from vitcli.runner.engines.drivers import PLAN, join_drivers, other_drivers, prepare_folder
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import ConfigError, InputError, InUseError, PartlyError
from vitcli.runner.evaluate.teacher import with_seed, with_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.files import commit_json, readable_json
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.definition import Trial, trial_folder
from vitcli.runner.study.images import contrast, join
from vitcli.runner.study.plan import Options, model_size, worker_count
from vitcli.runner.study.run import free_name, plan_entry
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Message, TrialEvent

THREADS = 1
"""CPU threads of a training."""


class Comparison:
    """The pairs of an idea in the folder of a campaign."""

    def __init__(
        self,
        root: Path,
        campaign: Campaign,
        idea: Idea,
        specs: Sequence[ExperimentSpec],
        *,
        is_claim: bool = False,
        adopts: bool = False,
    ) -> None:
        """``specs`` are those of the change and of the best. ``adopts`` makes a winner the best."""
        self.root, self.campaign, self.idea, self.specs = root, campaign, idea, specs
        self.is_claim, self.adopts = is_claim, adopts
        self.split = "test" if is_claim else campaign.split

    @property
    def row(self) -> TaskRow:
        return self.specs[0].task.row

    @property
    def name_of_best(self) -> str:
        return "the start" if self.is_claim else self.campaign.name_of(self.idea.against)

    def trial(self, side: Side, seed: int) -> Trial:
        spec = self.specs[side != self.idea.side]
        name = side.config_hash[:12]
        return Trial(
            variant=name,
            setting={},
            spec=with_seed(spec, seed),
            config_hash=side.config_hash,
            folder=trial_folder(name, {}, seed),
        )

    @property
    def seeds(self) -> range:
        return range(self.idea.first_seed, self.idea.first_seed + self.campaign.max_seeds)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.idea.side, self.idea.against

    def record(self, trial: Trial) -> RunRecord:
        return trial_state(trial, RunDir(self.root / trial.folder), THREADS, split=self.split)

    def score(self, side: Side, seed: int) -> float | None:
        """Return a score in the unit of the table; None without a result."""
        if self.split == "val" and (known := self.campaign.score_of(side, seed)) is not None:
            return known
        record = self.record(self.trial(side, seed))
        value = record.number(f"{self.split}_{self.row.headline.name}")
        if record.state != "finished" or value is None:
            return None
        self.campaign = self.campaign.with_result(record.precision or "", record.data_hash)
        return record.headline.scale * value

    def wanted(self) -> Iterator[str]:
        """Yield the folders of the trainings without a result, in the order of their seeds."""
        for seed in self.seeds:
            for side in self.sides:
                if self.score(side, seed) is None and not self.why_diverged(side, seed):
                    yield self.trial(side, seed).folder

    def why_diverged(self, side: Side, seed: int) -> str:
        record = self.record(self.trial(side, seed))
        return record.reason if record.state == "diverged" else ""

    def look(self) -> Idea:
        """Return the idea with the verdict on its pairs so far; record it if it is new."""
        before, idea = self.idea, self.idea
        if before.is_final:
            return before
        scores = list[tuple[float, float]]()
        has_diverged = False
        for seed in self.seeds:
            change, best = (self.score(side, seed) for side in self.sides)
            if change is None or best is None:
                has_diverged = bool(self.why_diverged(idea.side, seed))
                if reason := self.why_diverged(idea.against, seed):
                    raise InputError(
                        f"the best so far diverged with seed {seed} ({reason}), so no comparison"
                        " with it means anything; begin another campaign with a start that trains"
                    )
                break
            scores.append((change, best))
        images = self.image_variance(len(scores))
        idea = self.campaign.decide(idea.replace(scores=tuple(scores)), images)
        if has_diverged and not idea.is_final:
            idea = idea.replace(verdict="diverged")
        if len(idea.scores) > len(before.scores) or idea.is_final:
            self.save(idea.replace(seconds=self.seconds()))
        return self.idea

    def image_variance(self, pairs: int) -> dict[int, float] | None:
        """Return ``rule.decide``'s argument; validation images have no stored predictions."""
        if self.split == "val":
            return None
        seeds, metric = self.seeds[:pairs], self.row.headline
        ours, theirs = (
            join({seed: self.record(self.trial(side, seed)).images for seed in seeds}, metric)
            for side in self.sides
        )
        return image_variance(contrast(ours, theirs, metric), pairs)

    def save(self, idea: Idea) -> None:
        """Write the ledger, which other processes may have changed, and adopt a winner.

        A state that another process has brought further stays.
        """

        def change(current: Campaign | None) -> Campaign:
            campaign = current or self.campaign
            stored, kept = campaign.find(idea, is_claim=self.is_claim), idea
            if stored and (stored.is_final or len(stored.scores) > len(idea.scores)):
                kept = stored.replace(seconds=max(stored.seconds, idea.seconds))
            if self.adopts and kept.is_won and kept.against == campaign.best:
                kept = kept.replace(adopted=True)
            if self.campaign.precision:
                found = self.campaign.precision, self.campaign.data_hash
                campaign = campaign.with_result(*found)
            self.idea = kept
            return campaign.with_idea(kept, is_claim=self.is_claim)

        self.campaign = update(self.root, change)

    def begin(self) -> None:
        """Write a new idea into the ledger, with seeds that no other process takes."""

        def change(current: Campaign | None) -> Campaign:
            campaign = current or self.campaign
            if campaign.find(self.idea, is_claim=self.is_claim) is None:
                idea = self.idea
                if self.is_claim:
                    self.idea = campaign.claim(idea.command)
                else:
                    self.idea = campaign.idea(idea.name, idea.side, idea.margin, idea.command)
                if self.sides != (idea.side, idea.against):
                    raise ConfigError("the best so far is another one now; type the command again")
            return campaign.with_idea(self.idea, is_claim=self.is_claim)

        self.campaign = update(self.root, change)

    def seconds(self) -> float:
        """Return the time of the trainings in this folder that no earlier idea has needed."""
        pairs = [(side, seed) for seed in self.seeds for side in self.sides]
        earlier = self.campaign.model_copy(
            update={"ideas": [each for each in self.campaign.ideas if each.key != self.idea.key]}
        )
        records = [
            self.record(self.trial(side, seed))
            for side, seed in pairs
            if self.is_claim or earlier.score_of(side, seed) is None
        ]
        return sum(record.number("train_seconds") or 0.0 for record in records)

    def move_stale(self) -> Iterator[str]:
        """Move folders that hold another or a damaged training; yield what was moved."""
        for seed in self.seeds:
            for side in self.sides:
                trial = self.trial(side, seed)
                record = self.record(trial)
                if record.state == "stale":
                    run = RunDir(self.root / trial.folder)
                    with contextlib.suppress(InUseError), run.lock(timeout=0):
                        run.path.rename(target := free_name(run.path, "stale"))
                        yield f"{trial.folder}: stale, kept as {target.name}: {record.reason}"

    def write_plan(self, options: Options, driver: int) -> None:
        stored = readable_json(self.root / PLAN) if other_drivers(self.root, own=driver) else {}
        trials = [self.trial(side, seed) for seed in self.seeds for side in self.sides]
        content = {
            "study": self.root.name,
            "threads": THREADS,
            **options.request(),
            "without_test": self.split == "val",
            "parameters": {trial.variant: model_size(trial.spec) for trial in trials[:2]},
            "data_hash": self.campaign.data_hash or None,
            "trials": stored.get("trials", {}) | {each.folder: plan_entry(each) for each in trials},
        }
        for spec in self.specs:
            own_code.save_copies(spec, self.root)
        commit_json(self.root / PLAN, content)


class PairDrive(Drive):
    """Trains pair after pair; a look at the pairs so far decides what comes next."""

    def __init__(
        self,
        pairs: Comparison,
        setup: Setup,
        on_event: Callable[[TrialEvent], None],
        on_pair: Callable[[Idea], None],
        budget: float | None,
    ) -> None:
        super().__init__(pairs.root, setup, on_event, budget=budget, max_failures=1)
        self.pairs, self.on_pair = pairs, on_pair
        self.failed: Ended | None = None
        self._begun: set[str] = set()
        self._told = len(pairs.idea.scores)

    def more(self) -> Sequence[str]:
        if len(self.pairs.idea.scores) > self._told:
            self._told = len(self.pairs.idea.scores)
            self.on_pair(self.pairs.idea)
        if self.pairs.idea.is_final:
            return []
        folder = next((each for each in self.pairs.wanted() if each not in self._begun), None)
        if folder is None:
            return []
        self._begun.add(folder)
        return [folder]

    def first(self) -> list[str]:
        return [folder for _ in range(self.setup.count) for folder in self.more()]

    def end(self, found: TrialEvent) -> None:
        event = found.event
        if isinstance(event, Ended) and event.state == "failed":
            self.failed = event
        self.pairs.look()


def refuse_other_precision(pairs: Comparison, options: Options) -> None:
    from vitcli.runner.machine.device import name_precision, pick_device

    device = pick_device(options.device)
    precisions = {name_precision(spec.train.precision, device) for spec in pairs.specs}
    if len(precisions) > 1:
        raise ConfigError(f"{pairs.idea.name}: both sides need the same train.precision")
    pairs.campaign.with_result(precisions.pop(), "")


def compare(
    pairs: Comparison,
    options: Options,
    on_event: Callable[[TrialEvent], None],
    on_pair: Callable[[Idea], None],
) -> Idea:
    """Train pairs until there is a verdict; return the idea with it."""
    from vitcli.runner.machine.device import pick_device

    if pairs.idea.is_final:
        if pairs.adopts:
            pairs.save(pairs.idea)
        return pairs.idea
    refuse_other_precision(pairs, options)
    device = pick_device(options.device)
    for spec in pairs.specs:
        with_teacher(spec)
    pairs.begin()
    with join_drivers(pairs.root) as driver:
        if pairs.look().is_final:
            return pairs.idea
        for text in pairs.move_stale():
            on_event(TrialEvent("", Message(text=text)))
        with prepare_folder(pairs.root):
            pairs.write_plan(options, driver)
        setup = Setup(
            threads=THREADS,
            count=worker_count(THREADS, options),
            pin=options.pin and device.type == "cpu",
            request=options.request() | {"without_test": pairs.split == "val"},
            driver=driver,
        )
        drive = PairDrive(pairs, setup, on_event, on_pair, options.budget)
        drive.run(drive.first())
    idea = pairs.idea
    if not idea.is_final:
        if drive.failed:
            raise error_of(replace(drive.failed, reason=f"{idea.name}: {drive.failed.reason}"))
        so_far = f"{quantity(len(idea.scores), 'pair')} so far. Continue: {options.command}"
        if drive.is_stopped():
            raise drive.stopped_error(so_far)
        raise PartlyError(f"a training has no result; {so_far}")
    pairs.save(idea.replace(seconds=pairs.seconds()))
    return pairs.idea
