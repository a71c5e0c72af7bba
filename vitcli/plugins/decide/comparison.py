"""What one call compares, and its trainings: pair after pair, until there is a verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from vitcli.core.spec import ExperimentSpec, Spec
from vitcli.core.spec.task import TaskRow
from vitcli.plugins.decide import rule
from vitcli.plugins.decide.ledger import METRIC, Campaign, Idea, Side, read, update
from vitcli.runner.engines.drive import Drive, error_of
from vitcli.runner.engines.drivers import LOGS, join_drivers, other_drivers, prepare_folder
from vitcli.runner.errors import ConfigError, InputError, PartlyError
from vitcli.runner.evaluate import teacher
from vitcli.runner.evaluate.teacher import with_seed, with_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, find_experiment, load_experiment
from vitcli.runner.experiment.diff import differences
from vitcli.runner.experiment.yaml_text import Places, format_value
from vitcli.runner.files import make_output_folder
from vitcli.runner.run.folder import RUNS, RunDir, named_folder
from vitcli.runner.run.record import RunRecord
from vitcli.runner.study.definition import Trial, Variant, hashed_trial, refuse_equal
from vitcli.runner.study.from_python import FIELDS
from vitcli.runner.study.images import contrast, join
from vitcli.runner.study.plan import Options, refuse_persons_files
from vitcli.runner.study.result import Contrast
from vitcli.runner.study.run import commit_plan, move_stale, setup_of
from vitcli.runner.study.states import trial_state
from vitcli.runner.text import Listener, ignore_message, portable, quantity
from vitcli.runner.train.events import Ended, Message, TrialEvent

OnEvent = Callable[[TrialEvent], None]
THREADS = 1
"""CPU threads of a training."""
OPTIONS = {field: f"--{name.replace('_', '-')}" for name, field in FIELDS.items()}
VAL_SPLIT = 0.2
"""Share of the training images that decide in a campaign whose experiment keeps none."""
SHARED = {"train.limit_batches": "it limits the measured images, too; see --limit-batches"}
"""Fields that a change cannot change, and why."""
STOPPING = dict.fromkeys(
    (f"train.{name}" for name in ("early_stopping", "epochs", "eval_every", "init_head")),
    "early stopping chooses by the images that decide; leave out --campaign",
)
"""Fields that say among which evaluations early stopping chooses."""


@dataclass(kw_only=True)
class Comparison:
    """The pairs of an idea in the folder of a campaign."""

    root: Path
    campaign: Campaign
    idea: Idea
    specs: Sequence[ExperimentSpec] = ()
    """Those of the change and of the best."""
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
        sides = [*zip(self.specs, self.idea.key[:2], strict=True)]
        first = self.idea.first_seed
        return [
            [hashed_trial(with_seed(spec, seed), digest, {}) for spec, digest in sides]
            for seed in range(first, first + self.campaign.max_seeds)
        ]

    def trials(self) -> list[Trial]:
        return [trial for pair in self.pairs() for trial in pair]

    def record(self, trial: Trial) -> RunRecord:
        return trial_state(trial, RunDir(self.root / trial.folder), THREADS, split=self.split)

    def outcome(self, trial: Trial) -> rule.Outcome:
        known = self.campaign.score_of(trial.config_hash, trial.spec.seed)
        if self.split == "val" and known is not None:
            return known
        record = self.record(trial)
        if record.state == "diverged":
            return f"seed {trial.spec.seed}: {record.reason}"
        value = record.number(f"{self.split}_{self.row.headline.name}")
        if record.state != "finished" or value is None:
            return None
        # What a pre-training learned follows from the configuration and the seed.
        weights = teacher.weights_used(record.changed(pretrained=None), trial.spec)
        facts = record.precision or "", record.data_hash or "", weights
        self.campaign = self.campaign.with_result(*facts)
        return self.row.headline.scale * value

    def wanted(self) -> list[str]:
        """Return the folders of the trainings that are missing, in the order of their seeds."""
        trials = () if self.idea.is_final else self.trials()
        return [trial.folder for trial in trials if self.outcome(trial) is None]

    def look(self) -> None:
        """Take up new pairs and the verdict on all so far; record them."""
        if self.idea.is_final:
            return
        outcomes = [(self.outcome(change), self.outcome(best)) for change, best in self.pairs()]
        idea = self.campaign.decide(self.idea, outcomes, self.contrast)
        if idea.pairs > self.idea.pairs or idea.is_final:
            self.save(idea)

    def contrast(self, count: int) -> Contrast | None:
        """Return the first pairs image by image; validation images have no stored predictions."""
        if self.split == "val" or not count:
            return None
        metric = self.row.headline
        ours, theirs = (
            join({trial.spec.seed: self.record(trial).images for trial in side}, metric)
            for side in zip(*self.pairs()[:count], strict=True)
        )
        return contrast(ours, theirs, metric)

    @property
    def notes(self) -> list[str]:
        """What the verdict does not say."""
        notes = list[str]()
        is_of_images = self.split == "test" and self.idea.verdict != "diverged"
        used = [trial for pair in self.pairs()[: self.idea.pairs] for trial in pair]
        has_runs = is_of_images and all(self.record(trial).has_result for trial in used)
        if has_runs and not self.contrast(self.idea.pairs):
            notes.append(rule.ABOUT_IMAGES)
        if self.adopts and self.idea.is_won and not self.idea.adopted:
            best = self.campaign.name_of(self.campaign.best)
            notes.append(f"not adopted, because {best} became the best meanwhile")
        return notes

    def save(self, idea: Idea) -> None:
        """Write a state of the idea into the ledger, and adopt a winner.

        What another process has brought further stays, and a new idea has seeds of its own.
        """
        idea = idea.replace(seconds=self.seconds())

        def change(campaign: Campaign) -> Campaign:
            known = {other.key: other for other in campaign.ideas + campaign.claims}
            stored, kept = known.get(idea.key), idea
            if stored is None:
                again = campaign.idea(idea.name, idea.side, idea.margin, idea.command)
                again = campaign.claim(idea.command) if self.is_claim else again
                if again.key != idea.key:
                    raise ConfigError("the campaign has changed meanwhile; type the command again")
            elif stored.is_final or (stored.pairs >= idea.pairs and not idea.is_final):
                kept = stored.replace(seconds=max(stored.seconds, idea.seconds))
            if self.adopts and kept.is_won and kept.against == campaign.best:
                kept = kept.replace(adopted=True)
            ours, self.idea = self.campaign, kept
            campaign = campaign.with_result(ours.precision, ours.data_hash, ours.weights)
            return campaign.with_idea(kept, is_claim=self.is_claim)

        self.campaign = update(self.root, self.campaign, change)

    def seconds(self) -> float:
        """Return the time of the trainings in this folder that no other idea has needed."""
        others = [idea for idea in self.campaign.ideas if idea.key != self.idea.key]
        campaign = self.campaign.model_copy(update={"ideas": others})
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
        refuse_persons_files(self.root, trials)
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
        pairs, known = self.pairs, self.pairs.idea.pairs
        pairs.look()
        if pairs.idea.pairs > known:
            about = pairs.idea.interval_text(pairs.campaign.digits)
            text = f"{quantity(pairs.idea.pairs, 'pair')}, interval {about}"
            self.on_event(TrialEvent("", Message(text=text)))
        left = [folder for folder in pairs.wanted() if folder not in self._begun]
        self._begun.update(left[:count])
        return left[:count]

    def end(self, found: TrialEvent) -> None:
        if isinstance(found.event, Ended) and found.event.state == "failed":
            self.failed = found.event


def refuse_other_precision(pairs: Comparison, options: Options) -> None:
    from vitcli.runner.machine.device import name_precision, pick_device

    device = pick_device(options.device)
    used, *others = sorted({name_precision(each.train.precision, device) for each in pairs.specs})
    if others:
        both = f"{used} and {others[0]}"
        raise ConfigError(f"{pairs.idea.name}: both sides need one train.precision, not {both}")
    pairs.campaign.with_result(used, "", {})


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
    pairs.save(pairs.idea)
    with join_drivers(pairs.root) as driver:
        drive = PairDrive(pairs, options, driver, on_event)
        if folders := drive.more(drive.setup.count):
            pairs.prepare(options, driver, on_event)
            drive.run(folders)
    pairs.look()
    if pairs.idea.is_final:
        pairs.save(pairs.idea)
        return
    if drive.failed:
        raise error_of(drive.failed)
    so_far = f"{quantity(pairs.idea.pairs, 'pair')} so far. Continue: {options.command}"
    if drive.is_stopped():
        raise drive.stopped_error(so_far)
    raise PartlyError(f"a training has no result; {so_far}")


class Call(Spec):
    """The options of ``vitcli decide`` that say what is compared."""

    campaign: str | None = None
    """With a campaign, validation images decide. Without one, test images do, as in a study."""
    folder: Path | None = None
    """By default that of the campaign, or one that the comparison itself names."""
    against: str | None = None
    typed: dict[str, Any] = Field(default_factory=dict)
    """Dotted field -> what all trainings have; None if it was not typed."""
    max_seeds: rule.MaxSeeds | None = None
    margin: rule.Margin | None = None
    command: str = ""
    on_message: Listener = ignore_message

    @property
    def root(self) -> Path | None:
        if self.folder or self.campaign is None:
            return self.folder
        return named_folder(self.campaign, "--campaign")

    def existing(self) -> tuple[Path, Campaign]:
        if self.root and (begun := read(self.root)):
            return self.root, begun
        raise InputError(
            f"no campaign {self.root or ''}; begin one: vitcli decide -s FIELD=VALUE"
            " --campaign NAME --against EXPERIMENT"
        )

    def compare(self, experiment: str | None, changes: Mapping[str, Any]) -> Comparison:
        """Return the comparison of a change: an experiment, changed fields or both."""
        campaign = read(self.root) if self.root else None
        if not (campaign or self.against):
            raise ConfigError(
                "name the best so far: --against EXPERIMENT; for a campaign, --campaign or --report"
            )
        for named in filter(None, (self.against, experiment)):
            own_code.state.typed.add(str(find_experiment(named)))
        campaign = campaign or self._begin()
        texts = [f"{field}={format_value(portable(value))}" for field, value in changes.items()]
        name = " ".join(filter(None, [Path(experiment or "").stem, *texts]))
        best = campaign.best
        fields = {**({} if experiment else best.changes), **changes}
        change, spec = _load(experiment or best.experiment, fields, campaign.typed)
        hashes = f"{best.config_hash[:4]}{change.config_hash[:8]}"
        root = self.root or RUNS / f"decide-{Path(best.experiment).stem}-{hashes}"
        begun = read(root)
        campaign = begun or campaign
        idea = campaign.idea(name, change, self.margin, self.command)
        is_other_split = (campaign.split == "val") != (self.campaign is not None)
        has_others = any(other.side != idea.side for other in campaign.ideas)
        is_foreign = not begun and {path.name for path in root.glob("*")} - {LOGS}
        if is_other_split or (has_others and self.campaign is None) or is_foreign:
            raise ConfigError(f"{root} holds something else; for several ideas: --campaign NAME")
        pairs = Comparison(root=root, campaign=campaign, idea=idea)
        return self._checked(pairs, spec)

    def claim(self) -> Comparison:
        """Return the comparison of the best with the start on the test images."""
        root, campaign = self.existing()
        claim = campaign.claim(self.command)
        pairs = Comparison(root=root, campaign=campaign, idea=claim, is_claim=True)
        return self._checked(pairs, self._load_again(campaign, claim.side))

    def _begin(self) -> Campaign:
        assert self.against
        typed = {field: value for field, value in self.typed.items() if value is not None}
        spec = load_experiment(self.against, typed, OPTIONS).spec
        if spec.data.folds:
            raise ConfigError("decide compares seeds, and data.folds gives each seed other images")
        if self.campaign is not None and not spec.data.val_split:
            self.on_message(
                f"note: {self.against} keeps no validation images, so the campaign sets"
                f" data.val_split to {VAL_SPLIT:g}; the test images are left for the claim"
            )
            typed["data.val_split"] = VAL_SPLIT
        metric = spec.task.row.headline
        return Campaign(
            start=_load(self.against, {}, typed)[0],
            typed=typed,
            split="test" if self.campaign is None else "val",
            max_seeds=self.max_seeds or rule.MOST,
            **{field: getattr(metric, field) for field in METRIC},
        )

    def _checked(self, pairs: Comparison, change: ExperimentSpec) -> Comparison:
        """Return a comparison with the specifications of both sides, if they can be compared."""
        campaign, idea = pairs.campaign, pairs.idea
        fixed = {
            "--against": (self.against, campaign.start.experiment),
            "--max-seeds": (self.max_seeds, campaign.max_seeds),
            "--margin": (self.margin, idea.margin),
            **{name: (value, campaign.typed.get(name)) for name, value in self.typed.items()},
        }
        for option, (value, before) in fixed.items():
            if value not in (None, before):
                raise ConfigError(
                    f"{option} was fixed before the first pair, at {before or 'none'}; leave the"
                    " option out"
                )
        best = self._load_again(campaign, idea.against)
        pairs.specs = [with_seed(spec, 0) for spec in (change, best)]  # a pair has its own seed
        named = zip((idea.name, pairs.name_of_best), pairs.specs, strict=True)
        variants = [Variant(name=name, changes={}, settings=(({}, spec),)) for name, spec in named]
        refuse_equal(variants[::-1], Places((), "decide"))
        stops = pairs.split == "val" and any(spec.train.early_stopping for spec in pairs.specs)
        changed = differences(*pairs.specs)
        for field, why in (SHARED | STOPPING if stops else SHARED).items():
            if field in changed:
                raise ConfigError(f"{idea.name}: both sides need the same {field}: {why}")
        specs = [trial.spec for trial in pairs.trials()]
        runs = {run for spec in specs for run in (spec.train.init, teacher.teacher_run(spec))}
        now = {run: teacher.weights_at_hand(run) for run in campaign.weights.keys() & runs}
        campaign.with_result("", "", now)
        return pairs

    def _load_again(self, campaign: Campaign, side: Side) -> ExperimentSpec:
        now, spec = _load(side.experiment, side.changes, campaign.typed)
        if now != side:
            raise InputError(
                f"{side.experiment}, or code that it names, was edited since the campaign in"
                f" {self.root} began; restore it, or begin another campaign"
            )
        return spec


def _load(
    experiment: str, changes: Mapping[str, Any], typed: Mapping[str, Any]
) -> tuple[Side, ExperimentSpec]:
    spec = load_experiment(experiment, {**typed, **changes}, OPTIONS).spec
    spec = with_teacher(spec, required=False)
    return Side(experiment=experiment, changes={**changes}, config_hash=config_hash(spec)), spec
