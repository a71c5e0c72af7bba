"""How much more pictures would help: probes on folds and on parts of them, and a power law.

Axes: N images, S sizes, R repeats, F features, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.metrics.linear_probe import LinearProbe, apply, linear_probe
from vitcli.runner.data.folds import spread

Numbers = NDArray[np.float64]
OnFit = Callable[[int, int], None]
"""Gets how many probes are fitted, and how many there will be."""
SLICES = 8
"""The smallest probes learn from one of so many parts of a probe's training images."""
TAKEN = (1, 2, 4, SLICES)
"""Numbers of these parts that the probes of each size learn from."""
REPEATS = 4
"""Largest number of disjoint sets of images of one size."""
POWERS = np.arange(-5, 20, 2) / 20
"""Powers c of the law: error = a + b n^-c. Each counts by its likelihood. With a negative one, the
gains of twice as many images still grow, as they do at the beginning of a curve."""
DRAWS = 400
"""Number of draws of a and b for each power."""
LAW = 0.3
"""Deviation of the logarithm of the gain over that of the law, which no curve follows exactly."""


def fold_probes(
    features: Tensor,
    labels: Tensor,
    parts: Tensor,
    num_classes: int,
    on_fit: OnFit = lambda done, most: None,
) -> list[LinearProbe]:
    """Return for each fold of ``parts`` (N,) a probe that learned from the other images.

    The next fold chooses the strength of its penalty: images that the probe is not asked about, and
    whose groups are in no other fold.
    """
    folds, probes = int(parts.max()) + 1, list[LinearProbe]()
    for part in range(folds):
        on_fit(part, folds)
        known = parts != part
        chooses = (parts == (part + 1) % folds)[known]
        probes.append(linear_probe(features[known], labels[known], num_classes, held_out=chooses))
    return probes


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """The errors of probes that have learned from more and more images."""

    sizes: Numbers
    """Mean number of training images of a probe: (S,)."""
    errors: Numbers
    """Share of the probes of a size that are wrong on an image; none has seen it: (N, S)."""
    repeats: Numbers
    """Share of the images on which the probes of one repeat are wrong: (S, R), NaN if not made."""
    choices: Numbers
    """Share of the images on which the largest probes are wrong, all with the penalty of one of
    them: one number for each probe."""


def groups_needed(folds: int) -> int:
    """Return how many groups of images a class needs, so that each eighth of a fold's has one."""
    return -(-SLICES * folds // (folds - 1))


def learning_curve(
    features: Tensor,
    labels: Tensor,
    groups: NDArray[np.int64],
    parts: Tensor,
    probes: Sequence[LinearProbe],
    on_fit: OnFit = lambda done, most: None,
) -> LearningCurve:
    """Return the errors on all images of probes that learned from an eighth of the others or more.

    ``probes[k]`` has learned from all images outside fold k of ``parts``. Those of the other sizes
    have its penalty, as a sum over the images, and learn from disjoint parts of its images.
    """
    counts = [min(REPEATS, SLICES // taken) for taken in TAKEN]
    errors, sizes = np.zeros((len(labels), len(TAKEN))), np.zeros(len(TAKEN))
    repeats = np.where(np.arange(REPEATS) < np.array(counts)[:, None], 0.0, np.nan)
    choices = {probe.strength: 0.0 for probe in probes}
    done, most = 0, len(probes) * (sum(counts) + len(choices) - 1)

    def wrong(part: int, chosen: Tensor, strength: float) -> Numbers:
        """Return which images of a fold a probe gets wrong that learned from the chosen images."""
        nonlocal done
        layer = probes[part].layer
        if len(chosen) < len(known) or strength != probes[part].strength:
            on_fit(done, most)
            done, count = done + 1, layer.shape[1]
            layer = linear_probe(
                features[chosen], labels[chosen], count, strengths=[strength]
            ).layer
        answers = apply(layer, features[is_asked]).argmax(1)
        return (answers != labels[is_asked]).cpu().double().numpy()

    for part, probe in enumerate(probes):
        is_asked = parts == part
        known, asked = (~is_asked).nonzero().flatten(), is_asked.cpu().numpy()
        order = np.random.default_rng(part).permutation(len(known))
        draws = [int(place).to_bytes(8, "big") for place in order]
        members = np.unique(groups[known.cpu()], return_inverse=True)[1]
        slices = spread(members, labels[known].tolist(), draws, SLICES).to(known.device)
        for size, (taken, count) in enumerate(zip(TAKEN, counts, strict=True)):
            for repeat in range(count):
                chosen = known[slices // taken == repeat]
                is_wrong = wrong(part, chosen, probe.strength * (len(known) / len(chosen)))
                errors[asked, size] += is_wrong / count
                repeats[size, repeat] += is_wrong.sum() / len(labels)
                sizes[size] += len(chosen) / count / len(probes)
        for strength in choices:
            choices[strength] += wrong(part, known, strength).sum() / len(labels)
    chosen_errors = np.array([choices[probe.strength] for probe in probes])
    return LearningCurve(sizes=sizes, errors=errors, repeats=repeats, choices=chosen_errors)


def extrapolate(
    curve: LearningCurve, groups: NDArray[np.int64], count: int
) -> tuple[float, tuple[float, float]]:
    """Return how much the error falls from ``count`` to twice as many images, and its interval.

    The interval (95 %) has the chance of the images that are asked, which of a group vary together,
    that of the images to learn from and of the penalty, and what no power law tells.
    ``experiments/statistics/more_pictures.py`` measures how often it holds.
    """
    mean, total, random = curve.errors.mean(0), len(groups), np.random.default_rng(0)
    away = np.zeros((groups.max() + 1, len(mean)))
    np.add.at(away, groups, curve.errors - mean)
    made = (~np.isnan(curve.repeats)).sum(1)
    often = made == REPEATS
    folds = len(curve.choices)
    # the mean of the folds, whose probes learned from different images, varies less than one probe
    of_one = folds * float((curve.repeats[often].var(1, ddof=1) * curve.sizes[often]).mean())
    of_choice = float(curve.choices.var(ddof=1))
    alone = (of_one / curve.sizes / made + of_choice) / folds
    chance = (away.T @ away + np.eye(len(mean))) / total**2 + np.diag(alone)
    noise = (of_one / (2 * count) + 2 * of_choice) ** 0.5
    inverse = np.linalg.inv(chance)
    gains, weights = np.zeros((len(POWERS), DRAWS)), np.zeros((len(POWERS), DRAWS))
    misfits = np.zeros((len(POWERS), 1))
    for row, power in enumerate(POWERS):
        law = np.stack([np.ones(len(mean)), _law_term(curve.sizes / count, power)], 1)
        covariance = np.linalg.inv(law.T @ inverse @ law)
        fitted = covariance @ law.T @ inverse @ mean
        misfit = mean - law @ fitted
        misfits[row] = misfit @ inverse @ misfit
        now, slope = random.multivariate_normal(fitted, covariance, DRAWS).T
        gain = -slope * _law_term(2.0, power)
        gains[row] = gain * np.exp(random.normal(0, LAW, DRAWS)) + random.normal(0, noise, DRAWS)
        # an error below 0 is impossible, but the best that is left if no draw is above it
        weights[row] = np.where(gain <= now, 1, 1e-9)
    weights *= np.exp((misfits.min() - misfits) / 2)
    shares = (0.5, 0.025, 0.975)
    gain, *limits = np.quantile(gains, shares, weights=weights, method="inverted_cdf").tolist()
    return gain, (limits[0], limits[1])


def _law_term(size: Any, power: float) -> Any:
    return (size**-power - 1) / power  # 0 at size 1, and no power is 0
