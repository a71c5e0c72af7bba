"""What one call compares: the experiments of both sides, the campaign and its folder."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.decide import rule
from vitcli.plugins.decide.ledger import METRIC, Campaign, Idea, Side, read
from vitcli.plugins.decide.pairs import Comparison
from vitcli.runner.engines.drivers import LOGS
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.teacher import teacher_run, weights_at_hand, with_seed, with_teacher
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.config import config_hash, find_experiment, load_experiment
from vitcli.runner.experiment.yaml_text import Places, format_value
from vitcli.runner.files import sha256
from vitcli.runner.run.folder import RUNS
from vitcli.runner.study.definition import Variant, refuse_equal
from vitcli.runner.study.from_python import FIELDS
from vitcli.runner.text import portable

CALL = "decide"
"""The place of what no option sets, for messages."""
OPTIONS = {field: f"--{name.replace('_', '-')}" for name, field in FIELDS.items()}
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
        if self.folder and (campaign := read(self.folder)):
            return self.folder, campaign
        raise InputError(
            f"no campaign {self.folder or ''}; begin one: vitcli decide -s FIELD=VALUE"
            " --campaign NAME --against EXPERIMENT"
        )

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
        best = campaign.best
        fields = {**({} if experiment else best.changes), **changes}
        change, spec = _load(experiment or best.experiment, fields, campaign.typed)
        digest = sha256(json.dumps([best.config_hash, change.config_hash]).encode())[:8]
        folder = self.folder or RUNS / f"{CALL}-{Path(best.experiment).stem}-{digest}"
        campaign = read(folder) or campaign
        adopted = next((idea for idea in reversed(campaign.ideas) if idea.adopted), None)
        if adopted and (adopted.name, adopted.side) == (name, change):
            idea, specs = adopted, list[ExperimentSpec]()
        else:
            _refuse_other_weights(campaign, change, spec)
            specs = self._specs(campaign, campaign.best, name, spec)
            idea = campaign.idea(name, change, self.margin, self.command)
        self._refuse_other(campaign, folder, idea)
        self._refuse_fixed(campaign, idea)
        return Comparison(
            root=folder, campaign=campaign, idea=idea, specs=specs, adopts=self.adopts
        )

    def claim(self) -> Comparison:
        """Return the comparison of the best with the start on the test images."""
        folder, campaign = self.existing()
        claim = campaign.claim(self.command)
        self._refuse_fixed(campaign, claim)
        spec = self._load_again(campaign, claim.side)
        specs = self._specs(campaign, campaign.start, claim.name, spec)
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

    def _specs(
        self, campaign: Campaign, best: Side, name: str, change: ExperimentSpec
    ) -> list[ExperimentSpec]:
        """Return the specifications of a change and of the best."""
        named = (campaign.name_of(best), self._load_again(campaign, best)), (name, change)
        variants = [  # each pair has a seed of its own
            Variant(name=name, changes={}, settings=(({}, with_seed(spec, 0)),))
            for name, spec in named
        ]
        refuse_equal(variants, Places((), CALL))
        return [variant.spec for variant in variants[::-1]]

    def _load_again(self, campaign: Campaign, side: Side) -> ExperimentSpec:
        now, spec = _load(side.experiment, side.changes, campaign.typed)
        if now != side:
            raise InputError(
                f"{side.experiment}, or code that it names, was edited since the campaign in"
                f" {self.folder} began; restore it, or begin another campaign"
            )
        _refuse_other_weights(campaign, now, spec)
        return spec

    def _refuse_other(self, campaign: Campaign, folder: Path, idea: Idea) -> None:
        is_other_split = (campaign.split == "val") != self.is_campaign
        has_others = any(other.side != idea.side for other in campaign.ideas)
        is_new = read(folder) is None and folder.exists()
        foreign = {path.name for path in folder.iterdir()} - {LOGS} if is_new else ()
        if is_other_split or (has_others and not self.is_campaign) or foreign:
            raise ConfigError(
                f"{folder}: holds something else; for several ideas, type --campaign NAME"
            )

    def _refuse_fixed(self, campaign: Campaign, idea: Idea) -> None:
        """Refuse options that were fixed before the first pair."""
        fixed = {
            "--against": (self.against, campaign.start.experiment),
            "--max-seeds": (self.max_seeds, campaign.max_seeds),
            "--margin": (self.margin, idea.margin),
            **{name: (value, campaign.typed.get(name)) for name, value in self.typed.items()},
        }
        for option, (value, before) in fixed.items():
            if value not in (None, before):
                began = "none" if before is None else before
                raise ConfigError(
                    f"{option} was fixed before the first pair, at {began}; leave the option out"
                )


def _load(
    experiment: str, changes: Mapping[str, Any], typed: Mapping[str, Any]
) -> tuple[Side, ExperimentSpec]:
    spec = load_experiment(experiment, {**typed, **changes}, OPTIONS).spec
    spec = with_teacher(spec, required=False)
    teacher = spec.task.taught_by
    side = Side(
        experiment=experiment,
        changes=dict(changes),
        config_hash=config_hash(spec),
        init_sha256=weights_at_hand(spec.train.init) if spec.train.init else "",
        teacher_sha256=(teacher.sha256 or "") if teacher else "",
    )
    return side, spec


def _refuse_other_weights(campaign: Campaign, side: Side, spec: ExperimentSpec) -> None:
    """Refuse a side if a run that it learns from was trained again since the side has scores."""
    known = [other for idea in campaign.ideas for other in (idea.side, idea.against)]
    runs = {"init_sha256": spec.train.init, "teacher_sha256": teacher_run(spec)}
    for field, run in runs.items():
        now = getattr(side, field)
        if now and {getattr(other, field) for other in known if other == side} - {"", now}:
            option = "--campaign NAME" if campaign.split == "val" else "-o FOLDER"
            raise InputError(
                f"{side.experiment}: {run} has other weights than in the earlier trainings of this"
                f" comparison; restore that run, or begin another comparison: {option}"
            )
