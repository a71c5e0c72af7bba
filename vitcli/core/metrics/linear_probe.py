"""The linear probe: regularised multinomial logistic regression on frozen features.

Axes: N test images, M training images, F features, K classes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.core.torch_use import without_compiler

STRENGTHS = (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Strengths of the L2 penalty to choose from, the strongest first."""
DEFAULT_STRENGTH = 1e-2
"""Strength if there are too few labels to choose it."""
HELD_OUT = 5
"""One of so many training images of each class is held out to choose the strength."""
MAX_ITERATIONS = 200
LBFGS = without_compiler(torch.optim.LBFGS)


@dataclass(frozen=True, kw_only=True)
class LinearProbe:
    """A linear layer on features, and the strength of the penalty that it was fitted with."""

    layer: Tensor
    """(F + 1, K); the last row is the bias."""
    strength: float
    is_chosen: bool
    """Whether held-out training images chose the strength; otherwise it is DEFAULT_STRENGTH."""


@torch.inference_mode(False)
@torch.enable_grad()
def linear_probe(
    train: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    strengths: Sequence[float] = STRENGTHS,
    held_out: Tensor | None = None,
    on_fit: Callable[[int, int], None] = lambda done, most: None,
) -> LinearProbe:
    """Fit a linear layer to the frozen features (M, F) of training images.

    The penalty acts on features with mean 0 and deviation 1; the returned layer takes them as they
    are. The strength of the penalty has the smallest cross-entropy on held-out training images,
    by default one of ``HELD_OUT`` of each class; with fewer images in a class it is
    ``DEFAULT_STRENGTH``. ``held_out`` (M,) are others. A single strength is taken as it is. The
    layer is then fitted to all training images. ``on_fit`` gets the number of fits that are done,
    and the largest number that may be needed.
    """
    mean, deviation = train.mean(0), train.std(0, correction=0)
    # a feature that is constant over the training images is only shifted
    deviation = torch.where(deviation > 1e-6 * mean.abs(), deviation, 1.0)
    train = (train - mean) / deviation
    labels = labels.clone()  # autograd saves no tensor of inference mode
    out = folds(labels) == HELD_OUT - 1 if held_out is None else held_out
    is_chosen = len(strengths) > 1 and bool(out.any())
    strength, best = DEFAULT_STRENGTH if len(strengths) > 1 else strengths[0], float("inf")
    fitted = fit_layers(train[~out], labels[~out], num_classes, strengths) if is_chosen else ()
    for done, (tried, layer) in enumerate(zip(strengths, fitted, strict=False), start=1):
        on_fit(done, len(strengths) + 1)
        loss = F.cross_entropy(apply(layer, train[out]), labels[out]).item()
        if loss > best:
            break  # weaker strengths take longer to fit
        strength, best = tried, loss
    (layer,) = fit_layers(train, labels, num_classes, [strength])
    weights = layer[:-1] / deviation[:, None]
    whole = torch.cat([weights, layer[-1:] - mean @ weights])
    return LinearProbe(layer=whole, strength=strength, is_chosen=is_chosen)


def folds(labels: Tensor) -> Tensor:
    """Return a fold for each image, 0 to ``HELD_OUT`` - 1, in turn within each class: (M,) int64.

    All are in fold 0 if a class has fewer images than there are folds.
    """
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    starts = (counts.cumsum(0) - counts)[labels[order]]
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels), device=labels.device) - starts
    if int(counts[counts > 0].min()) < HELD_OUT:
        return torch.zeros_like(labels)
    return rank % HELD_OUT


def cross_validated(
    train: Tensor,
    labels: Tensor,
    num_classes: int,
    *,
    fold: Tensor | None = None,
    most: int | None = None,
) -> Tensor | None:
    """Return logits (M, K) for the training images, each from a probe that has not seen it.

    ``fold`` (M,), by default that of ``folds``, is 0 to ``HELD_OUT`` - 1. Each fold has a strength
    of its own, which the next one of ``fold`` chooses. None if all images are in fold 0. A probe
    learns from at most ``most`` images, evenly spaced, for which the labels must be sorted.
    """
    parts = folds(labels) if fold is None else fold
    logits = train.new_zeros(len(train), num_classes)
    if not parts.any():
        return None
    for number in range(HELD_OUT):
        out = parts == number
        known = (~out).nonzero().flatten()
        known = known[:: -(-len(known) // most) if most else 1]
        chooses = None if fold is None else fold[known] == (number + 1) % HELD_OUT
        probe = linear_probe(train[known], labels[known], num_classes, held_out=chooses)
        logits[out] = apply(probe.layer, train[out])
    return logits


def apply(layer: Tensor, features: Tensor) -> Tensor:
    """Return the logits (N, K) of a layer (F + 1, K) whose last row is the bias."""
    return features @ layer[:-1] + layer[-1]


def fit_layers(
    features: Tensor, labels: Tensor, num_classes: int, strengths: Sequence[float]
) -> Iterator[Tensor]:
    """Yield for each strength the layer (F + 1, K) with the smallest penalised cross-entropy.

    The objective is the mean cross-entropy in nats plus strength / 2 times the squared norm of the
    weights without the bias. It is convex; L-BFGS (Liu and Nocedal 1989,
    https://doi.org/10.1007/BF01589116) starts from the layer before, so the strengths should fall.
    """
    layer = features.new_zeros(features.shape[1] + 1, num_classes, requires_grad=True)

    def closure(strength: float) -> float:
        loss = F.cross_entropy(apply(layer, features), labels)
        loss = loss + strength / 2 * layer[:-1].square().sum()
        (layer.grad,) = torch.autograd.grad(loss, layer)
        return loss.item()

    for strength in strengths:
        optimizer = LBFGS(
            [layer],
            max_iter=MAX_ITERATIONS,
            history_size=20,
            tolerance_grad=1e-5,
            tolerance_change=1e-9,
            line_search_fn="strong_wolfe",
        )
        optimizer.step(partial(closure, strength))
        yield layer.detach().clone()
