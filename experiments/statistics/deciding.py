"""How often is `vitcli decide` wrong, and how many pairs of seeds does it need?

Usage: python -m experiments.statistics.deciding [-o FILE] [--studies N]
Differences of pairs are drawn with the standard deviation 1 and a known mean, the effect, and are
judged by the rule of the command after each pair. Some cases have a margin of equivalence, a noise
floor (the variance of earlier pairs, drawn too, whose standard deviation may be another one) or
test images whose error all pairs share. Measured are
  better, worse, equivalent, unlikely, not_decided   shares of the verdicts
  pairs                                              mean number of pairs at the verdict
Then 100 ideas are tried in a campaign, of which some help and some hurt by a known number of
standard deviations; winners are adopted. Measured are
  false      mean number of adopted ideas that do not help
  any_false  share of the campaigns with one
  found      share of the ideas that help which are adopted
  trainings  mean number of trainings an idea
By default all is written to experiments/results/statistics/deciding.json.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.statistics.simulation import run
from vitcli.plugins.decide.ledger import Campaign, Side
from vitcli.plugins.decide.rule import FIRST, MOST, decide
from vitcli.runner.study.result import Contrast, Crossed
from vitcli.runner.study.significance import SeedVariance
from vitcli.runner.text import ignore_message

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "deciding.json"
WORDS = {
    "better": "better",
    "worse": "worse",
    "equivalent": "equivalent",
    "unlikely to be better": "unlikely",
    "limited by the images": "unlikely",
    "not decided": "not_decided",
}


NO_EFFECT = 1e-9
"""A margin in which no comparison ends. With a margin, none is given up."""


@dataclass(frozen=True, kw_only=True)
class Case:
    effect: float = 0.0
    most: int = MOST
    margin: float | None = None
    may_give_up: bool = True
    floor: float = 0.0
    """Degrees of freedom of the noise floor; 0 is no floor."""
    floor_deviation: float = 1.0
    """Standard deviation of the pairs that the floor was measured with."""
    image_deviation: float = 0.0
    heavy_tails: bool = False


CASES = {
    **{f"effect {effect:g}": Case(effect=effect) for effect in (0, 0.5, 1, 1.5, 2, 3, -1)},
    **{
        f"effect {effect:g}, never given up": Case(effect=effect, may_give_up=False)
        for effect in (0, 1)
    },
    **{f"effect {e:g}, at most 24 pairs": Case(effect=e, most=24) for e in (0, 1)},
    **{
        f"effect {effect:g}, floor of 14": Case(effect=effect, floor=14, may_give_up=False)
        for effect in (0, 1)
    },
    "effect 0, floor too quiet by half": Case(floor=14, floor_deviation=0.5, may_give_up=False),
    "effect 0, heavy tails": Case(heavy_tails=True, may_give_up=False),
    "effect 0, images 0.5": Case(image_deviation=0.5, may_give_up=False),
    "effect 0, margin 1": Case(margin=1.0),
    "effect 0, margin 2": Case(margin=2.0),
    "effect 1, margin 1": Case(effect=1.0, margin=1.0),
}


def _images(case: Case) -> Contrast:
    """Return differences on test images that give their mean the variance of the case."""
    one = Crossed(num_seeds=1, num_images=1, mean=0.0, ms_images=0.0, ms_seeds=0.0, ms_residual=0.0)
    variance = case.image_deviation**2
    looks = tuple(
        one.replace(num_seeds=n, ms_images=n * variance) for n in range(FIRST, case.most + 1)
    )
    return Contrast(crossed=looks[-1], looks=looks)


def measure(case: Case, studies: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    found = dict.fromkeys(WORDS.values(), 0.0)
    images = _images(case) if case.image_deviation else None
    pairs = 0
    for _ in range(studies):
        drawn = random.standard_t(5, case.most) / (5 / 3) ** 0.5
        if not case.heavy_tails:
            drawn = random.standard_normal(case.most)
        shift = case.effect + case.image_deviation * random.standard_normal()
        floor = None
        if case.floor:
            value = case.floor_deviation**2 * random.chisquare(case.floor) / case.floor
            floor = SeedVariance(value=value, freedom=case.floor)
        decision = decide(
            (drawn + shift).tolist(),
            max_seeds=case.most,
            margin=case.margin if case.may_give_up else NO_EFFECT,
            floor=floor,
            contrast=images,
        )
        found[WORDS[decision.verdict]] += 1 / studies
        pairs += decision.pairs
    return found | {"pairs": pairs / studies}


@dataclass(frozen=True, kw_only=True)
class Night:
    """A campaign of IDEAS ideas."""

    helping: float = 0.0
    """Share of the ideas that help."""
    size: float = 1.0
    hurting: float = 0.0
    """Share of the ideas that hurt by one standard deviation."""


IDEAS = 100
NIGHTS = {
    "100 ideas, none helps": Night(),
    "100 ideas, 10 help by 1, 30 hurt": Night(helping=0.1, hurting=0.3),
    "100 ideas, 10 help by 2, 30 hurt": Night(helping=0.1, size=2.0, hurting=0.3),
}
STUDIES_A_NIGHT = 50
"""Number of single comparisons in whose time a campaign is simulated."""


def try_ideas(night: Night, random: np.random.Generator) -> dict[str, float]:
    effects = random.permutation(
        np.select(
            [
                np.arange(IDEAS) < night.helping * IDEAS,
                np.arange(IDEAS) >= (1 - night.hurting) * IDEAS,
            ],
            [night.size, -1.0],
            0.0,
        )
    )
    start = Side(experiment="start", config_hash="start")
    campaign = Campaign(
        start=start,
        split="val",
        max_seeds=MOST,
        label="score",
        unit="",
        digits=2,
        higher_is_better=True,
    )
    level = {start.config_hash: 0.0}
    scores: dict[tuple[str, int], float] = {}

    def score(side: Side, seed: int) -> float:
        key = side.config_hash, seed
        if key not in scores:  # so that a difference has the standard deviation 1
            scores[key] = level[side.config_hash] + random.normal(0, 0.5**0.5)
        return scores[key]

    adopted = []
    for number, effect in enumerate(effects):
        side = Side(experiment="start", config_hash=str(number))
        level[side.config_hash] = level[campaign.best.config_hash] + effect
        idea = campaign.idea(str(number), side, None, "")
        while not idea.is_final:
            seed = idea.first_seed + len(idea.scores)
            pair = score(idea.side, seed), score(idea.against, seed)
            idea = campaign.decide(idea, (*idea.scores, pair), ignore_message)
        campaign = campaign.with_idea(idea.replace(adopted=idea.is_won))
        if idea.is_won:
            adopted.append(effect)
    false = sum(effect <= 0 for effect in adopted)
    helping = sum(effect > 0 for effect in effects)
    return {
        "false": false,
        "any_false": false > 0,
        **({"found": (len(adopted) - false) / helping} if helping else {}),
        "trainings": len(scores) / IDEAS,
    }


def measure_any(case: Case | Night, studies: int) -> dict[str, float]:
    if isinstance(case, Case):
        return measure(case, studies)
    random = np.random.default_rng(0)
    nights = [try_ideas(case, random) for _ in range(max(1, studies // STUDIES_A_NIGHT))]
    return {name: float(np.mean([night[name] for night in nights])) for name in nights[0]}


if __name__ == "__main__":
    run("deciding", __doc__, CASES | NIGHTS, measure_any, 20_000)
