"""The scores of a variant on each test image, from the stored predictions of its trials. No torch.

Axes: S seeds, I images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitcli.core.metric import Metric
from vitcli.runner.run.predictions import PerImage
from vitcli.runner.study.result import (
    EXACT_LOOKS,
    MIN_PAIRS,
    Contrast,
    Crossed,
    Plan,
    VariantResult,
    sort_seeds,
)

Scores = NDArray[np.float64]
MAX_EXAMPLES = 12


@dataclass(frozen=True)
class ImageScores:
    """Seed -> scores of the test images (I,), in the unit of the table; labels (I,), if any."""

    by_seed: Mapping[int, Scores]
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def crossed(self) -> Crossed | None:
        scores = np.array(list(self.by_seed.values()))
        return cross(scores) if min(scores.shape) > 1 else None


def join(found: Mapping[int, PerImage | None], headline: Metric) -> ImageScores:
    """Return the scores of each seed; none unless all are there and have the same images."""
    known = {seed: each for seed, each in found.items() if each}
    labels = [each.labels for each in known.values()]
    sizes = {len(each.scores) for each in known.values()}
    is_same = all(np.array_equal(each, labels[0]) for each in labels[1:])
    if len(known) < len(found) or len(sizes) > 1 or not is_same:
        return ImageScores({})
    scores = {seed: headline.scale * each.scores.astype(np.float64) for seed, each in known.items()}
    return ImageScores(scores, *labels[:1])


def cross(scores: Scores) -> Crossed:
    """Return the mean squares of scores (S, I) with at least two seeds and two images."""
    seeds, images = scores.shape
    mean = float(scores.mean())
    by_seed = images * float(((scores.mean(1) - mean) ** 2).sum())
    by_image = seeds * float(((scores.mean(0) - mean) ** 2).sum())
    rest = max(0.0, float(((scores - mean) ** 2).sum()) - by_seed - by_image)
    return Crossed(
        num_seeds=seeds,
        num_images=images,
        mean=mean,
        ms_seeds=by_seed / (seeds - 1),
        ms_images=by_image / (images - 1),
        ms_residual=rest / ((seeds - 1) * (images - 1)),
    )


def contrast(
    ours: ImageScores, theirs: ImageScores, headline: Metric, plan: Plan | None = None
) -> Contrast | None:
    """Return the comparison over the seeds of both; None for one seed or other test images."""
    seeds = sort_seeds(ours.by_seed.keys() & theirs.by_seed.keys(), plan)
    mine, other = (np.array([each.by_seed[seed] for seed in seeds]) for each in (ours, theirs))
    if mine.shape != other.shape or not np.array_equal(ours.labels, theirs.labels):
        return None
    if min(mine.shape) < 2:
        return None
    right, wrong = (headline.scale, 0) if headline.higher_is_better else (0, headline.scale)
    difference = (mine - other).mean(0)
    loss = -difference if headline.higher_is_better else difference
    worst = np.argsort(-loss, kind="stable")[:MAX_EXAMPLES]
    return Contrast(
        crossed=cross(mine - other),
        looks=tuple(
            cross((mine - other)[:pairs])
            for pairs in range(MIN_PAIRS, min(len(seeds), MIN_PAIRS + EXACT_LOOKS))
        ),
        by_class=_by_class(difference, ours.labels),
        only_baseline=int(((other == right).all(0) & (mine == wrong).all(0)).sum()),
        only_variant=int(((mine == right).all(0) & (other == wrong).all(0)).sum()),
        examples=tuple(int(i) for i in worst if loss[i] > 0),
    )


def with_scores(
    rows: Sequence[VariantResult],
    found: Sequence[Mapping[int, PerImage | None]],
    headline: Metric,
    plan: Plan | None = None,
) -> tuple[VariantResult, ...]:
    """Return the rows with what ``found`` says of each test image: seed -> scores, for each row."""
    joined = [join(each, headline) for each in found]
    contrasts = [None, *(contrast(each, joined[0], headline, plan) for each in joined[1:])]
    return tuple(
        row.replace(images=each.crossed(), contrast=other)
        for row, each, other in zip(rows, joined, contrasts, strict=True)
    )


def _by_class(differences: Scores, labels: NDArray[np.int64]) -> tuple[float, ...]:
    if not len(labels):
        return ()
    sums = np.bincount(labels, differences)
    return tuple(float(x) for x in sums / np.maximum(1, np.bincount(labels)))
