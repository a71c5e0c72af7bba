"""Metrics of several labels at once, and of numbers. Axes: N images, K classes."""

import torch
from torch import Tensor


def average_precision(scores: Tensor, is_right: Tensor) -> float:
    """Return the mean precision at each image with the class, ranked by score: (N,), (N,) bool.

    Images of equal score share a rank. It is the area of the steps below the curve of precision and
    recall, as in scikit-learn. At least one image has the class.
    """
    accepted, hits = ranked_hits(scores, is_right)
    gained = hits.diff(prepend=hits.new_zeros(1))
    return float((hits / accepted * gained).sum() / hits[-1])


def mean_average_precision(scores: Tensor, is_right: Tensor) -> float:
    """Return the mean over the classes with an image, of scores (N, K) and (N, K) bool."""
    classes = is_right.any(0).nonzero().flatten().tolist()
    return sum(average_precision(scores[:, k], is_right[:, k]) for k in classes) / len(classes)


def best_threshold(shares: Tensor, is_right: Tensor) -> float:
    """Return the least accepted probability with the largest micro-F1: (N, K), (N, K) bool.

    It lies halfway to the next lower probability.
    """
    ranked = shares.flatten().unique().flip(0)
    accepted, hits = ranked_hits(shares.flatten(), is_right.flatten())
    best = int((2 * hits / (accepted + is_right.sum())).argmax())
    upper = ranked[best].item()
    lower = ranked[best + 1].item() if best + 1 < len(ranked) else 0.0
    middle = (upper + lower) / 2
    return middle if middle > lower else upper


def ranked_hits(scores: Tensor, is_right: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many scores are at least as large as each different score, and how many are right.

    The different scores (S,) fall: (N,), (N,) bool -> (S,) and (S,) fp64.
    """
    ranked, order = scores.sort(descending=True, stable=True)
    is_last = torch.cat([ranked[1:] != ranked[:-1], torch.ones_like(is_right[:1])])
    places = is_last.nonzero().flatten()
    return places.double() + 1, is_right[order].double().cumsum(0)[places]


def f1_scores(is_accepted: Tensor, is_right: Tensor) -> tuple[float, float]:
    """Return micro-F1 and macro-F1 of answers (N, K) bool to labels (N, K) bool.

    F1 is 2 TP / (2 TP + FP + FN): of all answers together, and the mean over the classes.
    Classes that are neither among the labels nor answered do not count.
    """
    both = 2 * (is_accepted & is_right).double().sum(0)
    total = (is_accepted.double() + is_right).sum(0)
    macro = (both[total > 0] / total[total > 0]).mean()
    return float(both.sum() / total.sum()), float(macro)


def measure_errors(predictions: Tensor, targets: Tensor) -> dict[str, float]:
    """Return errors in the unit of the targets (N,), and R2 unless all targets are equal."""
    error = predictions - targets
    measured = {
        "absolute_error": error.abs().mean().item(),
        "rmse": error.square().mean().sqrt().item(),
    }
    spread = (targets - targets.mean()).square().sum()
    return measured | ({"r2": (1 - error.square().sum() / spread).item()} if spread else {})
