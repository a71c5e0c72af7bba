"""The ledger of a campaign: each idea in order, what came of it, and the report. No torch."""

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from vitcli.core.metric import Metric
from vitcli.core.spec import Spec
from vitcli.core.spec.rows import AcceptsList
from vitcli.plugins.decide import rule
from vitcli.runner.engines.drivers import prepare_folder
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import commit, read_hashed, to_hashed_json
from vitcli.runner.report.report import DataTable, Report, facts_of, hidden
from vitcli.runner.report.report import Field as Column
from vitcli.runner.study.significance import ALPHA, SeedVariance, pool_seed_variance
from vitcli.runner.text import interval, quantity, signed

FILE = "campaign.json"
METRIC = ("label", "unit", "digits", "higher_is_better")
"""Fields of a campaign that are those of the score that decides."""
MIN_FLOOR = 7
"""Smallest degrees of freedom of a noise floor."""


class Side(Spec):
    """A configuration: an experiment with changed fields."""

    experiment: str
    """Name or file."""
    changes: dict[str, Any] = Field(default_factory=dict)
    config_hash: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Side) and self.config_hash == other.config_hash

    __hash__ = None  # type: ignore[assignment]


class Idea(rule.Answer):
    """A change of the best so far, and the comparison of both."""

    name: str
    side: Side
    against: Side
    first_seed: int
    margin: float | None = None
    floor: rule.Pair | None = None
    """Variance of the paired differences of earlier comparisons, and its degrees of freedom; fixed
    before the first pair."""
    scores: Annotated[tuple[rule.Pair, ...], AcceptsList] = ()
    """Score of the change and of the best, a pair each, from the first seed on."""
    seconds: float = 0.0
    """Time of the trainings that the idea needed beyond those of earlier ideas."""
    command: str = ""
    adopted: bool = False

    @property
    def pairs(self) -> int:
        return len(self.scores)

    @property
    def key(self) -> tuple[str, str, int]:
        return self.side.config_hash, self.against.config_hash, self.first_seed


class Campaign(Spec):
    """A start, and the ideas that were compared with the best so far."""

    format: Literal[1] = 1
    start: Side
    typed: dict[str, Any] = Field(default_factory=dict)
    """Dotted field -> value that all trainings have, such as ``train.epochs``."""
    split: Literal["val", "test"]
    """The images that decide. Claims are decided by the test images."""
    max_seeds: int
    label: str
    unit: str
    digits: int
    higher_is_better: bool
    precision: str = ""
    """That of the first result."""
    data_hash: str = ""
    weights: dict[str, str] = Field(default_factory=dict)
    """Run that trainings started or learned from -> SHA-256 of its weights."""
    ideas: Annotated[tuple[Idea, ...], AcceptsList] = ()
    claims: Annotated[tuple[Idea, ...], AcceptsList] = ()

    @property
    def metric(self) -> Metric:
        return Metric(name="", **{field: getattr(self, field) for field in METRIC})

    @property
    def adopted(self) -> list[Idea]:
        return [idea for idea in self.ideas if idea.adopted]

    @property
    def best(self) -> Side:
        return self.adopted[-1].side if self.adopted else self.start

    @property
    def unused_seed(self) -> int:
        used = [idea.first_seed + self.max_seeds for idea in self.ideas + self.claims]
        return max(used, default=0)

    def name_of(self, side: Side) -> str:
        """Return how a side is called that was the start, or the best at some time."""
        until = takewhile(lambda idea: idea.against != side, self.adopted)
        return " + ".join([Path(self.start.experiment).stem, *(idea.name for idea in until)])

    @property
    def seconds(self) -> float:
        return sum(idea.seconds for idea in self.ideas + self.claims)

    @property
    def false_adoptions(self) -> float:
        """Return how many are to be expected at most, if no idea helps."""
        tried = [idea for idea in self.ideas if idea.is_final]
        return sum(idea.alpha * (rule.FLOOR_SHARE if idea.floor else 1) / 2 for idea in tried)

    def idea(self, name: str, side: Side, margin: float | None, command: str) -> Idea:
        """Return the comparison of a change with the best: the one that there is, or a new one.

        The idea that was adopted last stays what it was. A new best has seeds that nothing has
        used; all ideas against it share them.
        """
        known = [idea for idea in reversed(self.ideas) if idea.against == self.best]
        adopted = [idea for idea in self.adopted[-1:] if idea.name == name]
        if same := next((idea for idea in known + adopted if idea.side == side), None):
            return same
        pairs = [[change - best for change, best in i.scores] for i in self.ideas if i.is_final]
        floor = pool_seed_variance(pairs)
        return Idea(
            name=name,
            side=side,
            against=self.best,
            first_seed=known[0].first_seed if known else self.unused_seed,
            margin=margin,
            floor=(floor.value, floor.freedom) if floor and floor.freedom >= MIN_FLOOR else None,
            command=command,
        )

    def claim(self, command: str) -> Idea:
        """Return the comparison of the best with the start, or the one that there is.

        It has seeds that nothing has used. Each further claim has half the alpha of the one before.
        """
        if self.best == self.start:
            raise ConfigError("nothing was adopted yet, so the best is the start")
        if self.claims and self.claims[-1].side == self.best:
            return self.claims[-1]
        return Idea(
            name="the best",
            side=self.best,
            against=self.start,
            first_seed=self.unused_seed,
            alpha=ALPHA / 2 ** len(self.claims),
            command=command,
        )

    def score_of(self, config_hash: str, seed: int) -> float | None:
        """Return a score of the campaign's split that an idea has recorded."""
        for idea in self.ideas:
            sides, place = idea.key[:2], seed - idea.first_seed
            if config_hash in sides and 0 <= place < len(idea.scores):
                return idea.scores[place][sides.index(config_hash)]
        return None

    def decide(self, idea: Idea, outcomes: rule.Outcomes, contrast_of: rule.ContrastOf) -> Idea:
        """Return an idea with the scores and the verdict of its trainings."""
        decision = rule.judge(
            outcomes,
            contrast_of,
            max_seeds=self.max_seeds,
            margin=idea.margin,
            higher_is_better=self.higher_is_better,
            floor=SeedVariance(value=idea.floor[0], freedom=idea.floor[1]) if idea.floor else None,
            alpha=idea.alpha,
        )
        answer = decision.model_dump(exclude={"pairs"})
        return idea.replace(scores=tuple(outcomes[: decision.pairs]), **answer)

    def with_idea(self, idea: Idea, *, is_claim: bool = False) -> "Campaign":
        """Return the campaign with a new state of an idea or of a claim."""
        kind = "claims" if is_claim else "ideas"
        listed = {known.key: known for known in getattr(self, kind)} | {idea.key: idea}
        return self.model_copy(update={kind: tuple(listed.values())})

    def with_result(self, precision: str, data_hash: str, weights: Mapping[str, str]) -> "Campaign":
        """Return the campaign with what is known of a result, which fits the earlier ones."""
        known = {"precision": self.precision, "images": self.data_hash}
        known |= {f"weights of {run}": sha256 for run, sha256 in self.weights.items()}
        found = {"precision": precision, "images": data_hash}
        found |= {f"weights of {run}": sha256 for run, sha256 in weights.items()}
        for what, value in found.items():
            if value and known.get(what, "") not in ("", value):
                raise InputError(
                    f"{what}: {known[what][:12]} in the earlier trainings, and {value[:12]} now;"
                    " go back to the earlier state, or begin another comparison: -o FOLDER"
                )
        data_hash, used = data_hash or self.data_hash, {**self.weights, **weights}
        facts = {"precision": precision or self.precision, "data_hash": data_hash, "weights": used}
        return self.model_copy(update=facts)


def read(root: Path) -> Campaign | None:
    """Return the campaign in a folder; None without one."""
    content = read_hashed(root / FILE)
    try:
        return None if content is None else Campaign.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{root / FILE}: of another version of vitcli") from error


def update(root: Path, begun: Campaign, change: Callable[[Campaign], Campaign]) -> Campaign:
    """Change the ledger in a folder, or a new one, while no other process does; return it."""
    with prepare_folder(root):
        campaign = change(read(root) or begun)
        commit(root / FILE, to_hashed_json(campaign.model_dump(mode="json")))
    return campaign


def report(name: str, campaign: Campaign) -> Report:
    tried, adopted = sum(idea.is_final for idea in campaign.ideas), len(campaign.adopted)
    notes = [
        f"{quantity(tried, 'idea')} tried, {adopted} adopted. If none helps, up to"
        f" {campaign.false_adoptions:.2f} false adoptions are to be expected.",
        "The mean difference at an early stop is too large on average; quote the interval.",
    ]
    if adopted and not campaign.claims:
        notes.append("No claim yet: --claim compares the best with the start on new seeds.")
    best = campaign.name_of(campaign.best)
    return Report(
        facts=[
            *facts_of(campaign=name, start=campaign.start.experiment, best=best),
            *facts_of(tried=tried, adopted=adopted, seconds=campaign.seconds),
            *hidden(unit=rule.unit_of(campaign.metric)),
            *hidden(false_adoptions=campaign.false_adoptions),
        ],
        tables=[table(kind, getattr(campaign, kind), campaign) for kind in ("ideas", "claims")],
        notes=notes,
    )


def table(name: str, ideas: Sequence[Idea], campaign: Campaign) -> DataTable:
    stored = {"verdict", "interval", "adopted", "seconds", "command"}
    rows = [
        {"number": number, "idea": idea.name, "pairs": len(idea.scores)}
        | {"difference": idea.mean, **idea.model_dump(include=stored)}
        for number, idea in enumerate(ideas, 1)
    ]
    unit, digits = rule.unit_of(campaign.metric), campaign.digits
    columns: list[Column | str] = [
        *("number", "idea", "verdict", "pairs"),
        Column("difference", f"difference, {unit}", text=lambda mean: signed(mean, digits)),
        Column("interval", text=lambda ends: interval(ends[0], ends[1], digits), none=""),
        *("adopted", Column("seconds", "time")),
        Column("command", is_shown=False),
    ]
    return DataTable(name, columns, rows)
