"""How often is `vitcli decide` wrong, and how many pairs of seeds does it need?

Usage: python -m experiments.statistics.deciding [-o FILE] [--studies N]
Differences of pairs are drawn with the standard deviation 1 and a known mean, the effect, and are
judged by the rule of the command after each pair. Some cases have a margin of equivalence, a noise
floor (the variance of earlier pairs, drawn too, whose standard deviation may be another one) or
test images whose error all pairs share. Measured are
  better, worse, equivalent, unlikely, not_decided   shares of the verdicts
  pairs                                              mean number of pairs at the verdict
By default all is written to experiments/results/statistics/deciding.json.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.statistics.simulation import run
from vitcli.plugins.decide.rule import MOST, decide
from vitcli.runner.study.significance import SeedVariance

RESULT = Path(__file__).parents[1] / "results" / "statistics" / "deciding.json"
WORDS = {
    "better": "better",
    "worse": "worse",
    "equivalent": "equivalent",
    "unlikely to be better": "unlikely",
    "limited by the images": "unlikely",
    "not decided": "not_decided",
}


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


def measure(case: Case, studies: int) -> dict[str, float]:
    random = np.random.default_rng(0)
    found = dict.fromkeys(WORDS.values(), 0.0)
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
        images = dict.fromkeys(range(case.most + 1), case.image_deviation**2)
        decision = decide(
            (drawn + shift).tolist(),
            most=case.most,
            margin=case.margin,
            floor=floor,
            image_variance=images if case.image_deviation else None,
            may_give_up=case.may_give_up,
        )
        found[WORDS[decision.verdict]] += 1 / studies
        pairs += decision.pairs
    return found | {"pairs": pairs / studies}


if __name__ == "__main__":
    run("deciding", __doc__, CASES, measure, 20_000)
