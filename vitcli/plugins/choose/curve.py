"""How much more pictures would help: probes on parts of the pictures, and a power law.

Axes: N images, S sizes, F features, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.metrics.linear_probe import LinearProbe, apply, linear_probe
from vitcli.runner.data.folds import fewest_groups, spread

Numbers = NDArray[np.float64]
SLICES = 8
"""The smallest probes learn from one of so many parts of the training images."""
COUNTS = (1, 2, 4)
"""Numbers of these parts that the other probes learn from; the last one learns from all."""
REPEATS = 4
POWERS = np.linspace(0.1, 1.5, 15)
"""Powers c of the law: error = a + b n^-c. All count, by their likelihood."""
DRAWS = 400
"""Number of draws of a and b for each power."""


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """The errors of probes that have learned from more and more images."""

    sizes: Numbers
    """Mean number of training images of a probe: (S,)."""
    rep: Numbers
    errors: Numbers
    """Share of the probes that are wrong on an image; none has seen it: (N, S)."""


def learning_curve(
    features: Tensor,
    labels: Tensor,
    groups: NDArray[np.int64],
    parts: Tensor,
    probes: Sequence[LinearProbe],
    on_fit: Callable[[int, int], None] = lambda done, most: None,
) -> LearningCurve:
    """Measure each probe's part of the images with probes that learned from fewer of the others.

    ``probes[k]`` has learned from all images outside part k. Its penalty is that of the smaller
    ones, too, as a sum over the images. The smaller ones learn from disjoint parts of its images.
    """
    errors = np.zeros((len(labels), len(COUNTS) + 1))
    rep = np.full((len(COUNTS), REPEATS), np.nan)
    sizes, count = np.zeros(len(COUNTS) + 1), int(labels.max()) + 1
    total = len(probes) * sum(min(REPEATS, SLICES // taken) for taken in COUNTS)
    done = 0
    for part, probe in enumerate(probes):
        is_test = parts == part
        known = (~is_test).nonzero().flatten()
        asked, truth = features[is_test], labels[is_test]

        def errs(layer: Tensor, asked: Tensor = asked, truth: Tensor = truth) -> Numbers:
            return (apply(layer, asked).argmax(1) != truth).double().cpu().numpy()

        order = np.random.default_rng(part).permutation(len(known))
        draws = [int(place).to_bytes(8, "big") for place in order]
        numbers = np.unique(groups[known.cpu()], return_inverse=True)[1]
        slices = spread(numbers, labels[known].tolist(), draws, SLICES).to(known.device)
        for column, taken in enumerate(COUNTS):
            repeats = min(REPEATS, SLICES // taken)
            for repeat in range(repeats):
                chosen = known[slices // taken == repeat]
                strength = probe.strength * len(known) / len(chosen)
                layer = linear_probe(
                    features[chosen], labels[chosen], count, strengths=[strength]
                ).layer
                wrong = errs(layer)
                errors[is_test.cpu(), column] += wrong / repeats
                rep[column, repeat] = np.nan_to_num(rep[column, repeat]) + wrong.sum() / len(labels)
                sizes[column] += len(chosen) / repeats / len(probes)
                done += 1
                on_fit(done, total)
        errors[is_test.cpu(), -1] = errs(probe.layer)
        sizes[-1] += len(known) / len(probes)
    return LearningCurve(sizes=sizes, errors=errors, rep=rep)


def gain_of_twice(
    curve: LearningCurve, groups: NDArray[np.int64], count: int
) -> tuple[float, float, float]:
    """Return how much the error falls from ``count`` to twice as many images, and its interval.
    """
    total = len(groups)
    mean = curve.errors.mean(0)
    away = np.zeros((groups.max() + 1, len(mean)))
    np.add.at(away, groups, curve.errors - mean)
    spread_of_means = away.T @ away / total**2 + np.eye(len(mean)) / total**2
    random, gains, weights = np.random.default_rng(0), [], []
    inverse = np.linalg.inv(spread_of_means)
    for power in POWERS:
        design = np.stack([np.ones(len(mean)), curve.sizes**-power], 1)
        covariance = np.linalg.inv(design.T @ inverse @ design)
        best = covariance @ design.T @ inverse @ mean
        misfit = mean - design @ best
        drawn = random.multivariate_normal(best, covariance, DRAWS)
        gains.append(drawn[:, 1] * count**-power * (1 - 2**-power))
        weights.append(np.exp(-misfit @ inverse @ misfit / 2) * (drawn[:, 0] >= 0))
    return np.concatenate(gains), np.concatenate(weights), mean
