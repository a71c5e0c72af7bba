"""How much more pictures would help: probes on parts of the pictures, and a power law.

Axes: N images, S sizes, R repeats, F features, K classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitcli.core.metrics.linear_probe import LinearProbe, apply, linear_probe
from vitcli.runner.data.folds import spread

Numbers = NDArray[np.float64]
SLICES = 8
"""The smallest probes learn from one of so many parts of a probe's training images."""
TAKEN = (1, 2, 4, SLICES)
"""Numbers of these parts that the probes of each size learn from."""
REPEATS = 4
"""Largest number of disjoint sets of images of one size."""
FEWEST = 10
"""Fewest groups of images in each class: four of five folds then have one in each part."""
POWERS = np.linspace(0.1, 1.5, 15)
"""Powers c of the law: error = a + b n^-c. Each counts by its likelihood."""
DRAWS = 400
"""Number of draws of a and b for each power."""


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """The errors of probes that have learned from more and more images."""

    sizes: Numbers
    """Mean number of training images of a probe: (S,)."""
    errors: Numbers
    """Share of the probes of a size that are wrong on an image; none has seen it: (N, S)."""
    repeats: Numbers
    """Share of the images on which the probes of one repeat are wrong: (S, R), NaN if not made."""


def learning_curve(
    features: Tensor,
    labels: Tensor,
    groups: NDArray[np.int64],
    parts: Tensor,
    probes: Sequence[LinearProbe],
    on_fit: Callable[[int, int], None] = lambda done, most: None,
) -> LearningCurve:
    """Return the errors on all images of probes that learned from an eighth of the others or more.

    ``probes[k]`` has learned from all images outside fold k of ``parts``. Those of the other sizes
    have its penalty, as a sum over the images, and learn from disjoint parts of its images.
    """
    counts = [min(REPEATS, SLICES // taken) for taken in TAKEN]
    errors, sizes = np.zeros((len(labels), len(TAKEN))), np.zeros(len(TAKEN))
    repeats = np.where(np.arange(REPEATS) < np.array(counts)[:, None], 0.0, np.nan)
    done, most = 0, len(probes) * sum(counts)
    for part, probe in enumerate(probes):
        known, asked = (parts != part).nonzero().flatten(), (parts == part).nonzero().flatten()
        order = np.random.default_rng(part).permutation(len(known))
        draws = [int(place).to_bytes(8, "big") for place in order]
        members = np.unique(groups[known.cpu()], return_inverse=True)[1]
        slices = spread(members, labels[known].tolist(), draws, SLICES).to(known.device)
        for size, (taken, count) in enumerate(zip(TAKEN, counts, strict=True)):
            for repeat in range(count):
                chosen = known[slices // taken == repeat]
                layer = probe.layer
                if taken < SLICES:
                    layer = linear_probe(
                        features[chosen],
                        labels[chosen],
                        layer.shape[1],
                        strengths=[probe.strength * len(known) / len(chosen)],
                    ).layer
                is_wrong = apply(layer, features[asked]).argmax(1) != labels[asked]
                errors[asked.cpu(), size] += is_wrong.double().cpu().numpy() / count
                repeats[size, repeat] += float(is_wrong.sum()) / len(labels)
                sizes[size] += len(chosen) / count / len(probes)
                done += 1
                on_fit(done, most)
    return LearningCurve(sizes=sizes, errors=errors, repeats=repeats)


def extrapolate(
    curve: LearningCurve, groups: NDArray[np.int64], count: int
) -> tuple[float, tuple[float, float]]:
    """Return how much the error falls from ``count`` to twice as many images, and its interval.

    A power law is fitted to the errors. The interval (95 %) has the chance of the images, which of
    a group vary together, that of the training images, and the unknown power.
    """
    total, mean = len(groups), curve.errors.mean(0)
    away = np.zeros((groups.max() + 1, len(mean)))
    np.add.at(away, groups, curve.errors - mean)
    of_images = (away.T @ away + np.eye(len(mean))) / total**2
    inverse, random = np.linalg.inv(of_images), np.random.default_rng(0)
    gains, weights = list[Numbers](), list[Numbers]()
    for power in POWERS:
        law = np.stack([np.ones(len(mean)), curve.sizes**-power], 1)
        covariance = np.linalg.inv(law.T @ inverse @ law)
        fitted = covariance @ law.T @ inverse @ mean
        misfit = mean - law @ fitted
        drawn = random.multivariate_normal(fitted, covariance, DRAWS)
        gains.append(drawn[:, 1] * count**-power * (1 - 2**-power))
        weights.append(np.exp(-misfit @ inverse @ misfit / 2) * (drawn[:, 0] >= 0))
    ordered = np.argsort(np.concatenate(gains))
    shares = np.concatenate(weights)[ordered].cumsum()
    low, middle, high = (
        float(np.concatenate(gains)[ordered][np.searchsorted(shares, share * shares[-1])])
        for share in (0.025, 0.5, 0.975)
    )
    return middle, (low, high)
