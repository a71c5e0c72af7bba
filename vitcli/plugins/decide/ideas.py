"""What one call compares: the experiments of both sides, the campaign and its folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.decide import rule
from vitcli.plugins.decide.ledger import Campaign, Side, read
from vitcli.plugins.decide.pairs import Comparison
from vitcli.runner.engines.drivers import LOGS
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.teacher import with_seed, with_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, find_experiment, load_experiment
from vitcli.runner.experiment.yaml_text import Places, format_value
from vitcli.runner.files import sha256
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.definition import Variant, refuse_equal
from vitcli.runner.text import portable

CALL = "decide"
"""The place of what no option sets, for messages."""
OPTIONS = {
    "data.name": "--data",
    "train.epochs": "--epochs",
    "train.limit_batches": "--limit-batches",
}
VAL_SPLIT = 0.2
"""Share of the training images that decide in a campaign whose experiment keeps none."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """The options of ``vitcli decide`` that say what is compared."""

    folder: Path | None
    """The folder of a campaign; None for one that the comparison itself names."""
    is_single: bool = False
    """Whether the comparison belongs to no campaign: the test images decide, as in a study."""
    against: str | None = None
    typed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_seeds: int | None = None
    margin: float | None = None
    adopts: bool = False
    """Whether a winner becomes the best."""
    command: str = ""
    on_message: Callable[[str], None]

    def existing(self) -> tuple[Path, Campaign]:
        campaign = read(self.folder) if self.folder else None
        if campaign is None or self.folder is None:
            raise InputError(
                f"no campaign {self.folder or ''}; begin one: vitcli decide -s FIELD=VALUE"
                " --campaign NAME --against EXPERIMENT"
            )
        return self.folder, campaign

    def __post_init__(self) -> None:
        most = rule.MOST if self.max_seeds is None else self.max_seeds
        rule.check((), most, self.margin)

    def compare(self, experiment: str | None, changes: Mapping[str, Any]) -> Comparison:
        """Return the comparison of a change: an experiment, changed fields or both."""
        campaign = read(self.folder) if self.folder else None
        if experiment and not (self.folder or self.against) and read(RUNS / experiment):
            raise ConfigError(
                f"{experiment} is a campaign: add --report, --claim or --adopt, or name a change"
                f" and --campaign {experiment}"
            )
        typed = self._refuse_other(campaign) if campaign else self._begin()
        best = campaign.best if campaign else Side(experiment=self.against or "", config_hash="")
        for named in filter(None, (self.against, experiment)):
            own_code.state.typed.add(str(find_experiment(named)))
        name = " ".join(filter(None, [Path(experiment or "").stem, _fields_text(changes)]))
        if campaign and self.folder:
            adopted = [idea for idea in campaign.ideas if idea.adopted and idea.side == best]
            if adopted and adopted[-1].name == name:
                return Comparison(self.folder, campaign, adopted[-1], ())
        known = campaign.name_of(best) if campaign else Path(best.experiment).stem
        sides, specs = sides_of(best, (experiment, changes), typed, (known, name))
        if campaign:
            self._refuse_edited(sides[0], best)
        folder = self.folder or _folder_of(*sides)
        campaign = campaign or read(folder) or self._new(folder, sides[0], specs[0], typed)
        if campaign.split == "test" and any(idea.side != sides[1] for idea in campaign.ideas):
            raise ConfigError(
                f"{folder}: the comparison of one change, by the test images; for more, type"
                " --campaign NAME"
            )
        if self.max_seeds not in (None, campaign.max_seeds):
            raise ConfigError(
                f"--max-seeds {self.max_seeds}: fixed before the first pair, at"
                f" {campaign.max_seeds}; leave the option out"
            )
        idea = campaign.idea(name, sides[1], self.margin, self.command)
        return Comparison(folder, campaign, idea, specs[::-1], adopts=self.adopts)

    def claim(self) -> Comparison:
        """Return the comparison of the best with the start on the test images."""
        folder, campaign = self.existing()
        claim = campaign.claim(self.command)
        change, names = (claim.side.experiment, claim.side.changes), ("the start", claim.name)
        sides, specs = sides_of(campaign.start, change, campaign.typed, names)
        self._refuse_edited(sides[0], campaign.start)
        self._refuse_edited(sides[1], claim.side)
        return Comparison(folder, campaign, claim, specs[::-1], is_claim=True)

    def _refuse_edited(self, found: Side, known: Side) -> None:
        if found != known:
            raise InputError(
                f"{known.experiment} was edited since the campaign in {self.folder} began; restore"
                " it, or begin another campaign"
            )

    def _refuse_other(self, campaign: Campaign) -> Mapping[str, Any]:
        """Return the fields of all trainings of a campaign, which no later call changes."""
        if self.is_single != (campaign.split == "test"):
            what = "of one change" if self.is_single else "a campaign"
            raise ConfigError(f"{self.folder}: not the comparison {what}; see --campaign")
        if self.against not in (None, campaign.start.experiment):
            raise ConfigError(
                f"--against {self.against}: the campaign began with {campaign.start.experiment},"
                " and the best so far is what it adopted; leave the option out"
            )
        for name, value in self.typed.items():
            if campaign.typed.get(name) != value:
                raise ConfigError(f"{name} is fixed since the campaign began; leave the option out")
        return campaign.typed

    def _begin(self) -> Mapping[str, Any]:
        if self.against is None:
            raise ConfigError("name the best so far: --against EXPERIMENT")
        spec = load_experiment(self.against, self.typed).spec
        if spec.data.folds:
            raise ConfigError("decide compares seeds, and data.folds gives each seed other images")
        if self.is_single or spec.data.val_split:
            return self.typed
        self.on_message(
            f"note: {self.against} keeps no validation images, so the campaign sets"
            f" data.val_split to {VAL_SPLIT:g}; the test images are left for the claim"
        )
        return {**self.typed, "data.val_split": VAL_SPLIT}

    def _new(
        self, folder: Path, start: Side, spec: ExperimentSpec, typed: Mapping[str, Any]
    ) -> Campaign:
        if folder.exists() and {path.name for path in folder.iterdir()} - {LOGS}:
            raise ConfigError(f"{folder}: holds something else; choose another folder")
        metric = spec.task.row.headline
        return Campaign(
            start=start,
            typed=dict(typed),
            split="test" if self.is_single else "val",
            max_seeds=self.max_seeds or rule.MOST,
            label=metric.label,
            unit=metric.unit,
            digits=metric.digits,
            higher_is_better=metric.higher_is_better,
        )


def sides_of(
    best: Side,
    change: tuple[str | None, Mapping[str, Any]],
    typed: Mapping[str, Any],
    names: tuple[str, str],
) -> tuple[list[Side], list[ExperimentSpec]]:
    """Return the sides and the specifications of the best and of the change, which have ``names``.

    A change is an experiment and changed fields; without an experiment, it changes further fields
    of the best.
    """
    experiment, changes = change
    fields = {**({} if experiment else best.changes), **changes}
    sides, variants = [], []
    for name, place, own in (
        (names[0], best.experiment, best.changes),
        (names[1], experiment or best.experiment, fields),
    ):
        spec = load_experiment(place, {**typed, **own}, OPTIONS).spec
        spec = with_teacher(spec, required=False)
        sides.append(Side(experiment=place, changes=own, config_hash=config_hash(spec)))
        spec = with_seed(spec, 0)  # each pair has a seed of its own
        variants.append(Variant(name=name, changes=own, settings=(({}, spec),)))
    refuse_equal(variants, Places((), CALL))
    return sides, [variant.spec for variant in variants]


def _fields_text(changes: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={format_value(portable(value))}" for name, value in changes.items())


def _folder_of(best: Side, change: Side) -> Path:
    digest = sha256(json.dumps([best.config_hash, change.config_hash]).encode())[:8]
    return RUNS / f"{CALL}-{Path(best.experiment).stem}-{digest}"
