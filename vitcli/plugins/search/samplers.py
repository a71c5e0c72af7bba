"""The samplers of a search: Optuna's own, and regularised evolution.

Every sampler is a pure function of the trials so far and of a seed. So a search that was killed
and continues with one trial at a time proposes the points that an uninterrupted one would.
"""

from typing import Any

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from vitcli.plugins.search.definition import SearchFields, Values

Distributions = dict[str, BaseDistribution]
optuna.logging.set_verbosity(optuna.logging.CRITICAL)


def distributions(fields: SearchFields) -> Distributions:
    return {field: _distribution(values) for field, values in fields.space.items()}


def _distribution(values: Values) -> BaseDistribution:
    low, high, step = values.low, values.high, values.step
    if low is None or high is None:
        return CategoricalDistribution(values.choices or ())
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, values.log, int(step or 1))
    return FloatDistribution(low, high, values.log, step)


def make_sampler(
    fields: SearchFields, space: Distributions, number: int, *, is_stuck: bool = False
) -> BaseSampler:
    """Return the sampler for the question with a number, which decides the draws with the seed.

    If the search is stuck, a sampler may propose a point that was not trained again and again.
    """
    seed = int(np.random.SeedSequence([fields.seed, number]).generate_state(1)[0])
    if fields.sampler == "evolution" and not is_stuck:
        return EvolutionSampler(space, fields.population, fields.sample_size, seed)
    if fields.sampler == "tpe" and not is_stuck:
        return TPESampler(seed=seed)
    return RandomSampler(seed=seed)


class EvolutionSampler(RandomSampler):
    """Regularised (ageing) evolution (Real et al. 2019, "Regularized Evolution for Image Classifier
    Architecture Search", algorithm 1).

    The population is the youngest ``population`` finished trials. Of ``sample_size`` random members
    the best becomes a parent, and its child differs from it in one field. The first ``population``
    trials are random. Deviation: the members are drawn without replacement; the paper draws with
    it.
    """

    def __init__(self, space: Distributions, population: int, sample_size: int, seed: int) -> None:
        super().__init__(seed=seed)
        self._space, self._population, self._sample_size = space, population, sample_size
        self._draws = np.random.default_rng(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> Distributions:
        """Return the whole space, so that all fields of a point are drawn together."""
        return self._space

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        def draw(name: str) -> Any:
            return self.sample_independent(study, trial, name, search_space[name])

        point = {name: draw(name) for name in search_space}
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        members = sorted(done, key=lambda member: (member.datetime_complete, member.number))
        if len(members) < self._population:
            return point
        size = min(self._sample_size, self._population)
        places = self._draws.choice(self._population, size=size, replace=False)
        sign = 1 if study.direction == StudyDirection.MAXIMIZE else -1
        sample = [members[-self._population :][place] for place in places]
        parent = max(sample, key=lambda member: sign * (member.value or 0.0)).params
        name = [*search_space][int(self._draws.integers(len(search_space)))]
        while point[name] == parent[name]:
            point[name] = draw(name)
        return parent | {name: point[name]}
