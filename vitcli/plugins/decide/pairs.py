"""The trainings of a comparison: pair after pair, until there is a verdict."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from vitcli.core.spec import ExperimentSpec
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.decide.csv_file import ABOUT_IMAGES, image_variance
from vitcli.plugins.decide.ledger import Campaign, Idea, update
from vitcli.runner.engines.drive import Drive, error_of
from vitcli.runner.engines.drivers import join_drivers, other_drivers, prepare_folder
from vitcli.runner.errors import ConfigError, InputError, PartlyError
from vitcli.runner.evaluate.teacher import weights_used, with_seed, with_teacher
from vitcli.runner.files import make_output_folder
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.definition import Trial, hashed_trial
from vitcli.runner.study.images import contrast, join
from vitcli.runner.study.plan import Options
from vitcli.runner.study.run import commit_plan, move_stale, setup_of
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, TrialEvent

OnEvent = Callable[[TrialEvent], None]
THREADS = 1
"""CPU threads of a training."""


@dataclass(kw_only=True)
class Comparison:
    """The pairs of an idea in the folder of a campaign."""

    root: Path
    campaign: Campaign
    idea: Idea
    specs: Sequence[ExperimentSpec]
    """Those of the change and of the best; none of a comparison that is over."""
    is_claim: bool = False
    adopts: bool = False
    """Whether a winner becomes the best."""

    @property
    def split(self) -> Literal["val", "test"]:
        return "test" if self.is_claim else self.campaign.split

    @property
    def row(self) -> TaskRow:
        return self.specs[0].task.row

    @property
    def name_of_best(self) -> str:
        return "the start" if self.is_claim else self.campaign.name_of(self.idea.against)

    def pairs(self) -> list[list[Trial]]:
        """Return the trials of the change and of the best, for each seed."""
        seeds = range(self.idea.first_seed, self.idea.first_seed + self.campaign.max_seeds)
        return [
            [
                hashed_trial(with_seed(spec, seed), config_hash, {})
                for config_hash, spec in zip(self.idea.key[:2], self.specs, strict=False)
            ]
            for seed in seeds
        ]

    def trials(self) -> list[Trial]:
        return [trial for pair in self.pairs() for trial in pair]

    def record(self, trial: Trial) -> RunRecord:
        return trial_state(trial, RunDir(self.root / trial.folder), THREADS, split=self.split)

    def outcome(self, trial: Trial) -> float | str | None:
        """Return the score in the unit of the table, or why it diverged; None without a result."""
        known = self.campaign.score_of(trial.config_hash, trial.spec.seed)
        if self.split == "val" and known is not None:
            return known
        record = self.record(trial)
        if record.state == "diverged":
            return record.reason
        value = record.number(f"{self.split}_{self.row.headline.name}")
        if record.state != "finished" or value is None:
            return None
        # What a pre-training learned follows from the configuration and the seed.
        weights = weights_used(record.changed(pretrained=None), trial.spec)
        facts = record.precision or "", record.data_hash, weights
        self.campaign = self.campaign.with_result(*facts)
        return self.row.headline.scale * value

    def wanted(self) -> Iterator[str]:
        """Return the folders of the trainings without a result, in the order of their seeds."""
        return (trial.folder for trial in self.trials() if self.outcome(trial) is None)

    def look(self) -> None:
        """Take up new pairs and the verdict on all so far; record them."""
        if self.idea.is_final:
            return
        scores = list[tuple[float, float]]()
        for pair in self.pairs():
            change, best = map(self.outcome, pair)
            if isinstance(best, str):
                raise InputError(
                    f"the best so far diverged with seed {pair[1].spec.seed} ({best}), so no"
                    " comparison with it means anything; begin another campaign"
                )
            if best is None or change is None or isinstance(change, str):
                break
            scores.append((change, best))
        images = self.image_variance(len(scores))
        idea = self.campaign.decide(self.idea.replace(scores=tuple(scores)), images)
        if isinstance(change, str) and not idea.is_final:
            idea = idea.replace(verdict="diverged")
        if len(idea.scores) > len(self.idea.scores) or idea.is_final:
            self.save(idea)

    def image_variance(self, count: int) -> dict[int, float] | None:
        """Return ``rule.decide``'s argument; validation images have no stored predictions."""
        if self.split == "val" or not count:
            return None
        metric = self.row.headline
        ours, theirs = (
            join({trial.spec.seed: self.record(trial).images for trial in side}, metric)
            for side in zip(*self.pairs()[:count], strict=True)
        )
        return image_variance(contrast(ours, theirs, metric), count)

    @property
    def notes(self) -> list[str]:
        """What the verdict does not say."""
        is_known = self.split == "val" or not self.specs or self.idea.verdict == "diverged"
        notes = [] if is_known or self.image_variance(len(self.idea.scores)) else [ABOUT_IMAGES]
        if self.adopts and self.idea.is_won and not self.idea.adopted:
            best = self.campaign.name_of(self.campaign.best)
            notes.append(f"not adopted, because {best} became the best meanwhile")
        return notes

    def save(self, idea: Idea) -> None:
        """Write the ledger, which other processes may have changed, and adopt a winner.

        A state that another process has brought further stays.
        """
        idea = idea.replace(seconds=self.seconds())

        def change(campaign: Campaign) -> Campaign:
            stored, kept = campaign.find(idea.key), idea
            if stored and (stored.is_final or len(stored.scores) > len(idea.scores)):
                kept = stored.replace(seconds=max(stored.seconds, idea.seconds))
            if self.adopts and kept.is_won and kept.against == campaign.best:
                kept = kept.replace(adopted=True)
            ours = self.campaign
            if ours.precision:
                campaign = campaign.with_result(ours.precision, ours.data_hash, ours.weights)
            self.idea = kept
            return campaign.with_idea(kept, is_claim=self.is_claim)

        self._update(change)

    def begin(self) -> None:
        """Write a new idea into the ledger, with seeds that no other process takes."""

        def change(campaign: Campaign) -> Campaign:
            asked = self.idea
            if self.is_claim:
                self.idea = campaign.claim(asked.command)
            else:
                self.idea = campaign.idea(asked.name, asked.side, asked.margin, asked.command)
            if self.idea.key[:2] != asked.key[:2]:
                raise ConfigError("the best so far is another one now; type the command again")
            return campaign.with_idea(self.idea, is_claim=self.is_claim)

        self._update(change)

    def _update(self, change: Callable[[Campaign], Campaign]) -> None:
        self.campaign = update(self.root, lambda current: change(current or self.campaign))

    def seconds(self) -> float:
        """Return the time of the trainings in this folder that no earlier idea has needed."""
        earlier = [idea for idea in self.campaign.ideas if idea.key != self.idea.key]
        campaign = self.campaign.model_copy(update={"ideas": earlier})
        return sum(
            self.record(trial).number("train_seconds") or 0.0
            for trial in self.trials()
            if self.is_claim or campaign.score_of(trial.config_hash, trial.spec.seed) is None
        )

    def prepare(self, options: Options, driver: int, on_event: OnEvent) -> None:
        """Move trainings of another configuration away, and write the plan of these."""
        trials = self.trials()
        for trial in trials:
            run = RunDir(self.root / trial.folder)
            if run.exists:
                move_stale(trial, run, THREADS, on_event, self.split)
        facts = {
            "study": self.root.name,
            "threads": THREADS,
            **options.request(),
            "without_test": self.split == "val",
            "data_hash": self.campaign.data_hash or None,
        }
        with prepare_folder(self.root):
            keep = other_drivers(self.root, own=driver) > 0
            commit_plan(self.root, facts, trials, keep=keep)


class PairDrive(Drive):
    """Trains pair after pair; a look at the pairs so far decides what comes next."""

    def __init__(self, pairs: Comparison, options: Options, driver: int, on_event: OnEvent) -> None:
        setup = setup_of(options, THREADS, driver, without_test=pairs.split == "val")
        super().__init__(pairs.root, setup, on_event, budget=options.budget, max_failures=1)
        self.pairs = pairs
        self.failed: Ended | None = None
        self._begun: set[str] = set()

    def more(self, count: int = 1) -> Sequence[str]:
        wanted = () if self.pairs.idea.is_final else self.pairs.wanted()
        folders = [*islice((folder for folder in wanted if folder not in self._begun), count)]
        self._begun.update(folders)
        return folders

    def end(self, found: TrialEvent) -> None:
        if isinstance(found.event, Ended) and found.event.state == "failed":
            self.failed = found.event
        self.pairs.look()


def refuse_other_precision(pairs: Comparison, options: Options) -> None:
    from vitcli.runner.machine.device import name_precision, pick_device

    device = pick_device(options.device)
    precisions = {name_precision(spec.train.precision, device) for spec in pairs.specs}
    if len(precisions) > 1:
        raise ConfigError(f"{pairs.idea.name}: both sides need the same train.precision")
    pairs.campaign.with_result(precisions.pop())


def compare(pairs: Comparison, options: Options, on_event: OnEvent) -> None:
    """Train pairs until the idea of the comparison has a verdict."""
    if pairs.idea.is_final:
        if pairs.adopts:
            pairs.save(pairs.idea)
        return
    refuse_other_precision(pairs, options)
    for spec in pairs.specs:
        with_teacher(spec)
    make_output_folder(pairs.root)
    pairs.begin()
    with join_drivers(pairs.root) as driver:
        pairs.look()
        if pairs.idea.is_final:
            return
        pairs.prepare(options, driver, on_event)
        drive = PairDrive(pairs, options, driver, on_event)
        drive.run(drive.more(drive.setup.count))
    idea = pairs.idea
    if not idea.is_final:
        if drive.failed:
            raise error_of(replace(drive.failed, reason=f"{idea.name}: {drive.failed.reason}"))
        so_far = f"{quantity(len(idea.scores), 'pair')} so far. Continue: {options.command}"
        if drive.is_stopped():
            raise drive.stopped_error(so_far)
        raise PartlyError(f"a training has no result; {so_far}")
    pairs.save(idea)
