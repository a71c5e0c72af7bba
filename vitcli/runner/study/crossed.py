"""The two sources of chance in a score: which seeds, and which test images.

All seeds are measured on the same images, so seeds and images are crossed. The model is
score = mean + seed + image + interaction; the last three are random and independent, with one
measurement for each pair of a seed and an image. Axes: S seeds, I images.
"""

import math
from typing import TYPE_CHECKING

from vitcli.core.spec import Spec

if TYPE_CHECKING:  # the document of a study is read without numpy
    import numpy as np
    from numpy.typing import NDArray

    Scores = NDArray[np.float64]


class Crossed(Spec):
    """Mean and mean squares of the scores (S, I), in the unit of the scores and in its square."""

    num_seeds: int
    num_images: int
    mean: float
    ms_seeds: float
    ms_images: float
    ms_residual: float

    @property
    def variance(self) -> float:
        """Return the variance of the mean, for new seeds and new images.

        It is (MS seeds + MS images - MS residual) / (S I). The expected value is at least that of
        MS residual / (S I), which is the smallest value returned.
        """
        total = self.ms_seeds + self.ms_images - self.ms_residual
        return max(total, self.ms_residual) / (self.num_seeds * self.num_images)

    @property
    def error(self) -> float:
        return math.sqrt(self.variance)

    @property
    def freedom(self) -> float:
        """Return Satterthwaite's degrees of freedom of the variance, at least S - 1.

        Source: Satterthwaite 1946, https://doi.org/10.2307/3002019
        """
        rows, columns = self.num_seeds - 1, self.num_images - 1
        squares = (self.ms_seeds**2 / rows, self.ms_images**2 / columns)
        below = sum(squares) + self.ms_residual**2 / (rows * columns)
        total = self.variance * self.num_seeds * self.num_images
        return max(float(rows), total**2 / below) if below else float(rows)

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the t interval of the mean at level 1 - alpha, for new seeds and new images."""
        from scipy import special

        half = -float(special.stdtrit(self.freedom, alpha / 2)) * self.error
        return self.mean - half, self.mean + half


def cross(scores: "Scores") -> Crossed:
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
