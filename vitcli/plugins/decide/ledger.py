"""The ledger of a campaign: each idea that was tried, in order, and what came of it. No torch."""

import itertools
from collections.abc import Callable, Mapping
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
from vitcli.runner.study.significance import ALPHA, SeedVariance, pool_seed_variance

FILE = "campaign.json"
METRIC = ("label", "unit", "digits", "higher_is_better")
"""Fields of a campaign that are those of the score that decides."""
MIN_FLOOR = 7
"""Smallest degrees of freedom of a noise floor."""
Pair = Annotated[tuple[float, float], AcceptsList]
Key = tuple[str, str, int]
"""Configuration hashes of a change and of the best, and the first seed of their comparison."""


class Side(Spec):
    """A configuration: an experiment with changed fields."""

    experiment: str
    """Name or file."""
    changes: dict[str, Any] = Field(default_factory=dict)
    config_hash: str
    init_sha256: str = ""
    """Of the weights of ``train.init``; empty without one."""
    teacher_sha256: str = ""
    """Of the weights of the teacher; empty without one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Side) and self.config_hash == other.config_hash

    __hash__ = None  # type: ignore[assignment]


class Idea(Spec):
    """A change of the best so far, and the comparison of both."""

    name: str
    side: Side
    against: Side
    first_seed: int
    alpha: float = ALPHA
    margin: float | None = None
    floor: Pair | None = None
    """Variance of the paired differences of earlier comparisons, and its degrees of freedom; fixed
    before the first pair."""
    scores: Annotated[tuple[Pair, ...], AcceptsList] = ()
    """Score of the change and of the best, a pair each, from the first seed on."""
    verdict: rule.Verdict = "more pairs"
    mean: float | None = None
    """Mean difference; above 0 is better. Like the interval, it is in the unit of the table."""
    interval: Pair | None = None
    seconds: float = 0.0
    """Time of the trainings that the idea needed beyond those of earlier ideas."""
    command: str = ""
    adopted: bool = False

    @property
    def is_final(self) -> bool:
        return self.verdict != "more pairs"

    @property
    def is_won(self) -> bool:
        return self.decision(0).is_won

    @property
    def key(self) -> Key:
        return self.side.config_hash, self.against.config_hash, self.first_seed

    def decision(self, most: int) -> rule.Decision:
        return rule.Decision(
            verdict=self.verdict,
            pairs=len(self.scores),
            most=most,
            mean=self.mean,
            interval=self.interval,
            alpha=self.alpha * (rule.FLOOR_SHARE if self.floor else 1),
        )


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
    ideas: Annotated[tuple[Idea, ...], AcceptsList] = ()
    claims: Annotated[tuple[Idea, ...], AcceptsList] = ()

    @property
    def metric(self) -> Metric:
        return Metric(name="", **{field: getattr(self, field) for field in METRIC})

    @property
    def best(self) -> Side:
        return next((idea.side for idea in reversed(self.ideas) if idea.adopted), self.start)

    @property
    def unused_seed(self) -> int:
        return max(
            (idea.first_seed + self.max_seeds for idea in self.ideas + self.claims), default=0
        )

    def differences(self, idea: Idea) -> list[float]:
        sign = 1 if self.higher_is_better else -1
        return [sign * (change - best) for change, best in idea.scores]

    def name_of(self, side: Side) -> str:
        """Return how a side is called that was the start, or the best at some time."""
        adopted = [idea for idea in self.ideas if idea.adopted]
        until = itertools.takewhile(lambda idea: idea.against != side, adopted)
        return " + ".join([Path(self.start.experiment).stem, *(idea.name for idea in until)])

    @property
    def seconds(self) -> float:
        return sum(idea.seconds for idea in self.ideas + self.claims)

    @property
    def false_adoptions(self) -> float:
        """Return how many are to be expected at most, if no idea helps."""
        return sum(idea.decision(0).alpha / 2 for idea in self.ideas if idea.is_final)

    def idea(self, name: str, side: Side, margin: float | None, command: str) -> Idea:
        """Return the comparison of a change with the best: the one that there is, or a new one.

        A new best has seeds that nothing has used; all ideas against it share them.
        """
        known = [idea for idea in reversed(self.ideas) if idea.against == self.best]
        if same := next((idea for idea in known if idea.side == side), None):
            return same
        floor = pool_seed_variance([self.differences(done) for done in self.ideas if done.is_final])
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
        last = self.claims[-1] if self.claims else None
        if last and last.side == self.best:
            return last
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

    def decide(self, idea: Idea, image_variance: Mapping[int, float] | None = None) -> Idea:
        """Return an idea with the verdict on its scores."""
        decision = rule.decide(
            self.differences(idea),
            most=self.max_seeds,
            margin=idea.margin,
            floor=SeedVariance(value=idea.floor[0], freedom=idea.floor[1]) if idea.floor else None,
            image_variance=image_variance,
            alpha=idea.alpha,
        )
        decided = {field: getattr(decision, field) for field in ("verdict", "mean", "interval")}
        return idea.replace(scores=idea.scores[: decision.pairs], **decided)

    def with_idea(self, idea: Idea, *, is_claim: bool = False) -> "Campaign":
        """Return the campaign with a new state of an idea or of a claim."""
        kind = "claims" if is_claim else "ideas"
        listed = {known.key: known for known in getattr(self, kind)} | {idea.key: idea}
        return self.model_copy(update={kind: tuple(listed.values())})

    def find(self, key: Key) -> Idea | None:
        return next((idea for idea in self.ideas + self.claims if idea.key == key), None)

    def with_result(self, precision: str, data_hash: str) -> "Campaign":
        """Return the campaign with the precision and the images of a result.

        Raises:
            InputError: Earlier results have others.
        """
        if self.precision not in ("", precision):
            raise InputError(
                f"the results of this campaign are in {self.precision}, and this machine trains in"
                f" {precision}; go on where it began, or begin another one"
            )
        if data_hash and self.data_hash not in ("", data_hash):
            raise InputError(
                "trained on other images than the earlier results; point --data-dir at those"
            )
        facts = {"precision": precision, "data_hash": data_hash or self.data_hash}
        return self.model_copy(update=facts)


def read(root: Path) -> Campaign | None:
    """Return the campaign in a folder; None without one."""
    content = read_hashed(root / FILE)
    try:
        return None if content is None else Campaign.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{root / FILE}: of another version of vitcli") from error


def update(root: Path, change: Callable[[Campaign | None], Campaign]) -> Campaign:
    """Change the ledger in a folder, while no other process does; return it."""
    with prepare_folder(root):
        campaign = change(read(root))
        commit(root / FILE, to_hashed_json(campaign.model_dump(mode="json")))
    return campaign
