"""The samplers of a search: Optuna's own, regularised evolution, and a grid.

Every sampler is a pure function of the trials so far and of a seed. So a search that was killed
and continues with one trial at a time proposes the points that an uninterrupted one would.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from vitcli.runner.search.attributes import is_lost
from vitcli.runner.search.definition import Search
from vitcli.runner.search.space import Choices, Parameter, Point, Space, point_key

Distributions = dict[str, BaseDistribution]
STARTUP_TRIALS = 10
"""Number of random trials before TPE models the scores."""


def distributions(space: Space) -> Distributions:
    """Return the space in Optuna's terms."""
    return {field: _distribution(each) for field, each in space.parameters.items()}


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Choices):
        return CategoricalDistribution(parameter.values)
    if parameter.is_integer:
        step = int(parameter.step or 1)
        return IntDistribution(int(parameter.low), int(parameter.high), parameter.log, step)
    return FloatDistribution(parameter.low, parameter.high, parameter.log, parameter.step)


def make_sampler(search: Search, number: int, *, is_stuck: bool = False) -> BaseSampler:
    """Return the sampler for the trial with a number.

    Args:
        search: The search.
        number: Number of the trial in the storage; together with the seed it decides the draws.
        is_stuck: The sampler repeats itself, so a random point is drawn instead.
    """
    fields = search.fields
    seed = derived_seed(fields.seed, number)
    if fields.sampler == "grid":
        return GridSampler(search.space)
    if fields.sampler == "random" or is_stuck:
        return RandomSampler(seed=seed)
    if fields.sampler == "evolution":
        space = distributions(search.space)
        return EvolutionSampler(space, fields.population, fields.sample_size, seed)
    if fields.sampler == "nsga2":
        return NSGAIISampler(population_size=fields.population, seed=seed)
    return TPESampler(n_startup_trials=STARTUP_TRIALS, seed=seed)


def derived_seed(seed: int, number: int) -> int:
    """Return the seed of the draws of one trial."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


class EvolutionSampler(BaseSampler):
    """Regularised (ageing) evolution (Real et al. 2019, "Regularized Evolution for Image Classifier
    Architecture Search", algorithm 1).

    The population is the youngest ``population`` finished trials. Of ``sample_size`` random members
    the best becomes a parent, and its child differs from it in one field. The first ``population``
    trials are random. Only a search with one objective is supported. Deviation: the members are
    drawn without replacement; the paper draws with it.
    """

    def __init__(self, space: Distributions, population: int, sample_size: int, seed: int) -> None:
        self._space, self._population, self._sample_size = space, population, sample_size
        self._rng = np.random.default_rng(seed)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        """Return the whole space, so that all fields of a point are drawn together."""
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        """Return a child of the population, or a random point while there is no population."""
        point = {name: self._draw(study, trial, name) for name in search_space}
        members = youngest(study.get_trials(deepcopy=False), self._population)
        if len(members) < self._population:
            return point
        parent = self._parent(members, study.direction)
        free = [name for name, each in search_space.items() if not each.single()]
        name = free[int(self._rng.integers(len(free)))]
        while point[name] == parent[name]:
            point[name] = self._draw(study, trial, name)
        return parent | {name: point[name]}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return a random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _draw(self, study: Study, trial: FrozenTrial, name: str) -> Any:
        return self._random.sample_independent(study, trial, name, self._space[name])

    def _parent(self, members: Sequence[FrozenTrial], direction: StudyDirection) -> Point:
        chosen = self._rng.choice(len(members), size=self._sample_size, replace=False)
        sign = 1 if direction == StudyDirection.MAXIMIZE else -1
        best = max((members[i] for i in chosen), key=lambda each: sign * (each.value or 0.0))
        return dict(best.params)


def youngest(trials: Sequence[FrozenTrial], count: int) -> list[FrozenTrial]:
    """Return the trials that were finished last, the oldest of them first."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    return sorted(done, key=lambda each: (each.datetime_complete, each.number))[-count:]


class GridSampler(BaseSampler):
    """Takes every point of a space of choices once, in the order of the file."""

    def __init__(self, space: Space) -> None:
        self._space = space

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        """Return the whole space."""
        return distributions(self._space)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the first point that no trial has; then the first one whose trials all failed.

        If there is none either, the last point.
        """
        trials = [each for each in study.get_trials(deepcopy=False) if each.number < trial.number]
        taken = {point_key(each.params) for each in trials}
        settled = {point_key(each.params) for each in trials if not is_lost(each)}
        for known in (taken, settled):
            for point in self._space.points():
                if point_key(point) not in known:
                    return point
        return point

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Return the first choice. Not reached, because all fields are drawn together."""
        return param_distribution.choices[0]
