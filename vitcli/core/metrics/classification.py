"""Metrics of a classification. Axes: N images, K classes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.data.batches import limit_images, split_batches
from vitcli.core.data.source import Images
from vitcli.core.metric import METRICS
from vitcli.core.spec import ExperimentSpec
from vitcli.core.torch_use import evaluating
from vitcli.plugin import load_target

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The accuracy of a classifier, its interval and its parts. Accuracies are shares (0 to 1)."""

    num_images: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """95 % Wilson interval: the sampling error of the test set alone."""
    per_class: tuple[float | None, ...]
    """Accuracy on the images of each class; None for a class without images."""
    confusion: tuple[tuple[int, ...], ...]
    """Rows are true classes, columns predicted ones."""

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(sum, self.confusion))

    @property
    def precision(self) -> tuple[float | None, ...]:
        """Return the share of right answers among the answers of each class; None without any."""
        answers = map(sum, zip(*self.confusion, strict=True))
        return tuple(
            row[k] / count if count else None
            for k, (row, count) in enumerate(zip(self.confusion, answers, strict=True))
        )

    @property
    def balanced_accuracy(self) -> float:
        """Return the mean accuracy of the classes that have images."""
        shares = [share for share in self.per_class if share is not None]
        return sum(shares) / len(shares)

    @property
    def majority(self) -> tuple[int, float]:
        """Return the class with the most images, and the accuracy of always answering it."""
        most = max(self.counts)
        return self.counts.index(most), most / self.num_images

    @property
    def has_equal_classes(self) -> bool:
        """Return whether all classes have as many images, but for one."""
        return max(self.counts) - min(self.counts) <= 1


def score(logits: Tensor, labels: Tensor) -> Scores:
    """Return the scores of logits (N, K) for labels (N,)."""
    logits, labels = _checked(logits, labels)
    confusion = confusion_matrix(logits, labels)
    counts = confusion.sum(1)
    hits = zip(confusion.diag().tolist(), counts.tolist(), strict=True)
    return Scores(
        num_images=len(logits),
        accuracy=accuracy(logits, labels),
        accuracy_interval=wilson_interval(int(confusion.diag().sum()), len(logits)),
        per_class=tuple(hit / count if count else None for hit, count in hits),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
    )


def measure_logits(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Return every metric of logits (N, K) for labels (N,) that the table has, by name."""
    logits, labels = _checked(logits, labels)
    measured = {
        name: load_target(metric.of_logits)(logits, labels)
        for name, metric in METRICS.items()
        if metric.of_logits
    }
    return {name: value for name, value in measured.items() if value is not None}


def _checked(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    if not logits.isfinite().all():
        raise ValueError("a logit is infinite or NaN")
    return logits.double().cpu(), labels.cpu()


def accuracy(logits: Tensor, labels: Tensor) -> float:
    return (logits.argmax(-1) == labels).double().mean().item()


def cross_entropy(logits: Tensor, labels: Tensor) -> float:
    """Return the mean cross-entropy in nats."""
    return F.cross_entropy(logits, labels).item()


def top5_accuracy(logits: Tensor, labels: Tensor) -> float | None:
    """Return the share of images with the class among the likeliest 5; None of up to 5 classes."""
    if logits.shape[1] <= TOP:
        return None
    top = logits.topk(TOP, dim=-1).indices
    return (top == labels[:, None]).any(-1).double().mean().item()


def confusion_matrix(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of images by true class (rows) and predicted class: (K, K) int64."""
    num_classes = logits.shape[1]
    pairs = labels * num_classes + logits.argmax(-1)
    return pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes)


def balanced_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the mean of the classes' accuracies (recalls); classes without images do not count."""
    confusion = confusion_matrix(logits, labels)
    counts = confusion.sum(1)
    return (confusion.diag()[counts > 0] / counts[counts > 0].double()).mean().item()


def macro_f1(logits: Tensor, labels: Tensor) -> float:
    """Return the mean of the classes' F1, the harmonic mean of precision and recall.

    F1 is 2 TP / (2 TP + FP + FN). Classes that are neither among the labels nor predicted do not
    count, as in scikit-learn.
    """
    confusion = confusion_matrix(logits, labels)
    total = confusion.sum(0) + confusion.sum(1)
    return (2 * confusion.diag()[total > 0] / total[total > 0].double()).mean().item()


def calibration_error(logits: Tensor, labels: Tensor, num_bins: int = 15) -> float:
    """Return the mean gap between confidence and accuracy over equal-width bins of confidence.

    A bin's weight is its number of images. Guo et al. 2017, https://arxiv.org/abs/1706.04599
    """
    confidence, predicted = logits.softmax(-1).max(-1)
    bins = (confidence * num_bins).long().clamp(max=num_bins - 1)
    gap = (predicted == labels).double() - confidence
    per_bin = torch.zeros(num_bins, dtype=torch.float64).index_add_(0, bins, gap)
    return (per_bin.abs().sum() / len(labels)).item()


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the score interval of Wilson 1927 for a proportion; ``z`` defaults to 95 %."""
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    scale = 1 + z * z / trials
    return (centre - spread) / scale, (centre + spread) / scale


def logits_and_labels(
    model: nn.Module, images: Images, spec: ExperimentSpec
) -> tuple[Tensor, Tensor]:
    """Return logits (N, K) in fp32 and labels (N,) of a split, normalised as the spec says.

    ``train.limit_batches`` limits the split too, to evenly spaced images.
    """
    images = limit_images(images, spec)
    return compute_logits(model, split_batches(images, spec)), images.labels


@torch.inference_mode()
def compute_logits(model: nn.Module, batches: Iterable[dict[str, Tensor]]) -> Tensor:
    """Return fp32 logits (N, K) of all images, in order, on the device of the batches.

    The model runs in eval mode. On CUDA the last batch is padded to the size of the others, so that
    a compiled model sees one shape.
    """
    rows, size = [], 0
    with evaluating(model):
        for batch in batches:
            images = batch["images"]
            count, size = len(images), max(size, len(images))
            if images.is_cuda and count < size:
                images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, size - count))
            rows.append(model(images).float()[:count])
    return torch.cat(rows)


VIEWS = {
    "mirror": [(0.5, 1, 1, False), (0.5, 1, 1, True)],
    "shift": [
        (0.25 if top == 1 else 0.125, top, left, is_mirrored)
        for top, left in ((1, 1), (0, 0), (2, 2))
        for is_mirrored in (False, True)
    ],
}
"""Test-time augmentation -> the share, top and left edge of each view, and whether it is mirrored.

The edges are those in an image with one reflected pixel on each side, so 1 is the image itself.
"""


class Views(nn.Module):
    """Images (B, C, H, W) -> the logarithm of the mean probability over the views of an image.

    ``shift`` has the six views of airbench (Jordan 2024, https://arxiv.org/abs/2404.00498).
    Deviation: there, logits are averaged.
    """

    def __init__(self, model: nn.Module, tta: str) -> None:
        super().__init__()
        self.model, self.views = model, VIEWS[tta]
        self.train(model.training)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        wide = F.pad(images, (1, 1, 1, 1), mode="reflect")
        rows = []
        for share, top, left, is_mirrored in self.views:
            view = wide[..., top : top + height, left : left + width]
            logits = self.model(view.flip(-1) if is_mirrored else view).float()
            rows.append(logits.log_softmax(-1) + math.log(share))
        return torch.stack(rows).logsumexp(0)
