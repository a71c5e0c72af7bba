"""What a search would cost: the share of valid points, and the time of a trial. Nothing trains."""

import math
from collections import Counter
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import optuna

from vitcli.runner.experiment.config import Experiment
from vitcli.runner.search.definition import Search
from vitcli.runner.search.judge import Judge, Verdict
from vitcli.runner.search.objective import Objective
from vitcli.runner.search.samplers import distributions
from vitcli.runner.search.space import Point, point_key
from vitcli.runner.search.storage import Place
from vitcli.runner.study.plan import Options, worker_count
from vitcli.runner.text import quantity

MAX_JUDGED = 200
"""Number of points that are judged, at most."""
NUM_TIMED = 3
"""Number of valid points whose training is timed on random images."""


@dataclass(frozen=True, kw_only=True)
class SearchEstimate:
    """The size and the cost of a search."""

    size: float
    """Number of points, valid or not; infinity for real numbers."""
    num_drawn: int
    """Number of points that were judged."""
    is_complete: bool
    """Whether every point was judged."""
    valid_share: float
    skipped: dict[str, int] = field(default_factory=dict)
    """Rule -> number of judged points that break it."""
    examples: dict[str, str] = field(default_factory=dict)
    """Rule -> what exactly broke it, for one of them."""
    num_open: int
    """Number of trials that are still to train."""
    num_repeats: int
    """Number of repeats that are still to train."""
    count: int
    """Number of trials at once."""
    seconds_each: float
    source: str
    """Where ``seconds_each`` comes from."""

    @property
    def seconds(self) -> float:
        """Return the time of all trials and repeats, without the final stage."""
        waves = math.ceil((self.num_open + self.num_repeats) / self.count)
        return waves * self.seconds_each

    def as_json(self) -> dict[str, Any]:
        size = None if math.isinf(self.size) else int(self.size)
        return asdict(self) | {"size": size, "seconds": self.seconds}


def estimate_search(search: Search, place: Place, options: Options) -> SearchEstimate:
    """Return the estimate of a search: what its storage says is done, and what is left."""
    judge = Judge(search)
    points = drawn_points(search)
    verdicts = [judge(point) for point in points]
    valid = [verdict for verdict in verdicts if verdict.spec]
    broken = [verdict for verdict in verdicts if not verdict.spec]
    is_complete = len({point_key(point) for point in points}) == search.space.size
    objective = Objective(search, place, options, judge, writes=False)
    done = [*objective.results.values()]
    times = [result.train_seconds for result in done if result.train_seconds]
    total = min(search.num_trials, len(valid)) if is_complete else search.num_trials
    seconds, source = fmean(times or [0.0]), f"the mean of {quantity(len(times), 'finished trial')}"
    if not times:
        seconds, source = _measure(search, options, valid)
    repeats = search.fields.repeats
    num_repeats = min(repeats.configurations, total) * len(repeats.seeds) if repeats else 0
    repeated = objective.wanted_repeats().keys() & objective.repeats.keys()
    return SearchEstimate(
        size=search.space.size,
        num_drawn=len(points),
        is_complete=is_complete,
        valid_share=len(valid) / len(verdicts),
        skipped=dict(Counter(verdict.rule for verdict in broken)),
        examples={verdict.rule: verdict.detail for verdict in broken},
        num_open=max(0, total - len(done)),
        num_repeats=max(0, num_repeats - len(repeated)),
        count=worker_count(search, options),
        seconds_each=seconds,
        source=source,
    )


def drawn_points(search: Search) -> list[Point]:
    """Return all points of a small space, otherwise random ones."""
    space, is_grid = search.space, search.fields.sampler == "grid"
    if space.is_finite and (space.size <= MAX_JUDGED or is_grid):
        return [*space.points()]
    sampler = optuna.samplers.RandomSampler(seed=search.fields.seed)
    study, fields = optuna.create_study(sampler=sampler), distributions(space)
    return [dict(study.ask(fields).params) for _ in range(MAX_JUDGED)]


def _measure(search: Search, options: Options, valid: list[Verdict]) -> tuple[float, str]:
    """Return the time of a trial on random images, and where the number comes from.

    The trials are the middles of equal parts of the points in order of size, so that their mean
    is near that of all.
    """
    import torch

    from vitcli.runner.train.estimate import make_estimate

    torch.set_num_threads(search.threads)
    by_size = sorted(valid, key=lambda each: each.sizes.forward_flops if each.sizes else 0)
    count = min(NUM_TIMED, len(by_size))
    found = []
    for i in range(count):
        verdict = by_size[(2 * i + 1) * len(by_size) // (2 * count)]
        assert verdict.spec is not None
        experiment = Experiment(search.name, verdict.spec, search.path, variant="point")
        found.append(make_estimate(experiment, options.device).seconds)
    return fmean(found or [0.0]), f"measured on random images for {quantity(len(found), 'point')}"
