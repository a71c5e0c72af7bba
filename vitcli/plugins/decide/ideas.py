"""What one call compares: the experiments of both sides, the campaign and its folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.decide import rule
from vitcli.plugins.decide.ledger import (
    METRIC,
    Campaign,
    Idea,
    Side,
    read,
    refuse_other_margin,
)
from vitcli.plugins.decide.pairs import Comparison
from vitcli.runner.engines.drivers import LOGS
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.teacher import weights_at_hand, with_seed, with_teacher
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
    is_campaign: bool
    """Whether validation images decide. Without a campaign, test images do, as in a study."""
    against: str | None = None
    typed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_seeds: int | None = None
    margin: float | None = None
    adopts: bool = False
    """Whether a winner becomes the best."""
    command: str = ""
    on_message: Callable[[str], None]

    def __post_init__(self) -> None:
        rule.check((), rule.MOST if self.max_seeds is None else self.max_seeds, self.margin)

    def existing(self) -> tuple[Path, Campaign]:
        campaign = read(self.folder) if self.folder else None
        if campaign is None or self.folder is None:
            raise InputError(
                f"no campaign {self.folder or ''}; begin one: vitcli decide -s FIELD=VALUE"
                " --campaign NAME --against EXPERIMENT"
            )
        return self.folder, campaign

    def compare(self, experiment: str | None, changes: Mapping[str, Any]) -> Comparison:
        """Return the comparison of a change: an experiment, changed fields or both."""
        if experiment and not (self.folder or self.against) and read(RUNS / experiment):
            raise ConfigError(
                f"{experiment} is a campaign: add --report or --claim, or name a change and"
                f" --campaign {experiment}"
            )
        for named in filter(None, (self.against, experiment)):
            own_code.state.typed.add(str(find_experiment(named)))
        campaign = (read(self.folder) if self.folder else None) or self._begin()
        texts = [f"{field}={format_value(portable(value))}" for field, value in changes.items()]
        name = " ".join(filter(None, [Path(experiment or "").stem, *texts]))
        if repeated := self._adopted_before(campaign, experiment, changes):
            return Comparison(root=self.existing()[0], campaign=campaign, idea=repeated, specs=())
        best = campaign.best
        fields = {**({} if experiment else best.changes), **changes}
        change = (name, experiment or best.experiment, fields)
        sides, specs = self._sides(campaign, best, change)
        folder = self.folder or _folder_of(sides)
        campaign = read(folder) or campaign
        self._refuse_other(campaign, folder, sides[0])
        idea = campaign.idea(name, sides[0], self.margin, self.command)
        return Comparison(
            root=folder, campaign=campaign, idea=idea, specs=specs, adopts=self.adopts
        )

    def _adopted_before(
        self, campaign: Campaign, experiment: str | None, changes: Mapping[str, Any]
    ) -> Idea | None:
        """Return the idea that is the best now if this is the command that adopted it."""
        last = next((idea for idea in reversed(campaign.ideas) if idea.adopted), None)
        if last is None or not self.folder:
            return None
        fields = {**({} if experiment else last.against.changes), **changes}
        side, _ = _load(experiment or last.against.experiment, fields, campaign.typed)
        if side != last.side:
            return None
        self._refuse_other(campaign, self.folder, side)
        refuse_other_margin(last, self.margin)
        return last

    def claim(self) -> Comparison:
        """Return the comparison of the best with the start on the test images."""
        folder, campaign = self.existing()
        claim = campaign.claim(self.command)
        change = (claim.name, claim.side.experiment, claim.side.changes)
        sides, specs = self._sides(campaign, campaign.start, change)
        self._refuse_edited(sides[0], claim.side)
        return Comparison(root=folder, campaign=campaign, idea=claim, specs=specs, is_claim=True)

    def _begin(self) -> Campaign:
        if self.against is None:
            raise ConfigError("name the best so far: --against EXPERIMENT")
        typed = {field: value for field, value in self.typed.items() if value is not None}
        spec = load_experiment(self.against, typed, OPTIONS).spec
        if spec.data.folds:
            raise ConfigError("decide compares seeds, and data.folds gives each seed other images")
        if self.is_campaign and not spec.data.val_split:
            self.on_message(
                f"note: {self.against} keeps no validation images, so the campaign sets"
                f" data.val_split to {VAL_SPLIT:g}; the test images are left for the claim"
            )
            typed["data.val_split"] = VAL_SPLIT
        metric = spec.task.row.headline
        return Campaign(
            start=_load(self.against, {}, typed)[0],
            typed=typed,
            split="val" if self.is_campaign else "test",
            max_seeds=self.max_seeds or rule.MOST,
            **{field: getattr(metric, field) for field in METRIC},
        )

    def _sides(
        self, campaign: Campaign, best: Side, change: tuple[str, str, Mapping[str, Any]]
    ) -> tuple[list[Side], list[ExperimentSpec]]:
        """Return the sides and the specifications of a change and of the best."""
        variants, sides = [], []
        sought = (campaign.name_of(best), best.experiment, best.changes)
        for name, experiment, fields in (sought, change):
            side, spec = _load(experiment, fields, campaign.typed)
            sides.append(side)
            spec = with_seed(spec, 0)  # each pair has a seed of its own
            variants.append(Variant(name=name, changes=dict(fields), settings=(({}, spec),)))
        self._refuse_edited(sides[0], best)
        campaign.refuse_other_weights(sides)
        refuse_equal(variants, Places((), CALL))
        return sides[::-1], [variant.spec for variant in variants[::-1]]

    def _refuse_edited(self, side: Side, known: Side) -> None:
        if side != known:
            raise InputError(
                f"{known.experiment} was edited since the campaign in {self.folder} began; restore"
                " it, or begin another campaign"
            )

    def _refuse_other(self, campaign: Campaign, folder: Path, change: Side) -> None:
        """Refuse a folder of something else, and options that were fixed before the first pair."""
        is_other_split = (campaign.split == "val") != self.is_campaign
        others = [idea for idea in campaign.ideas if idea.side != change and not self.is_campaign]
        is_new = read(folder) is None and folder.exists()
        foreign = {path.name for path in folder.iterdir()} - {LOGS} if is_new else ()
        if is_other_split or others or foreign:
            raise ConfigError(
                f"{folder}: holds something else; for several ideas, type --campaign NAME"
            )
        fixed = {
            "--against": (self.against, campaign.start.experiment),
            "--max-seeds": (self.max_seeds, campaign.max_seeds),
            **{name: (value, campaign.typed.get(name)) for name, value in self.typed.items()},
        }
        for option, (value, before) in fixed.items():
            if value not in (None, before):
                raise ConfigError(
                    f"{option} was fixed before the first pair, at {before}; leave the option out"
                )


def _load(
    experiment: str, changes: Mapping[str, Any], typed: Mapping[str, Any]
) -> tuple[Side, ExperimentSpec]:
    spec = load_experiment(experiment, {**typed, **changes}, OPTIONS).spec
    spec = with_teacher(spec, required=False)
    side = Side(
        experiment=experiment,
        changes=dict(changes),
        config_hash=config_hash(spec),
        init_sha256=weights_at_hand(spec.train.init) if spec.train.init else "",
    )
    return side, spec


def _folder_of(sides: list[Side]) -> Path:
    change, best = sides
    digest = sha256(json.dumps([best.config_hash, change.config_hash]).encode())[:8]
    return RUNS / f"{CALL}-{Path(best.experiment).stem}-{digest}"
